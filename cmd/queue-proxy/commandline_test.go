package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"queue-proxy": main}) }

func TestCommandLine(t *testing.T) { harness.RunScripts(t, "testdata") }

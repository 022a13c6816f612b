package main

import (
	"encoding/json"
	"runtime/debug"
	"testing"
)

func TestDocumentContainsEachModuleOnce(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.8", Path: "example.com/m/cmd/x",
		Deps: []*debug.Module{
			{Path: "example.com/a", Version: "v1.2.3", Sum: "h1:abc="},
			{Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/c", Version: "v2.0.0"}},
		},
	}
	got, err := json.Marshal(describe(info, "v9"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"bomFormat":"CycloneDX","specVersion":"1.6","version":1,` +
		`"metadata":{"component":{"type":"application","bom-ref":"pkg:golang/example.com/m/cmd/x@v9","name":"example.com/m/cmd/x","version":"v9","purl":"pkg:golang/example.com/m/cmd/x@v9"}},` +
		`"components":[{"type":"library","bom-ref":"pkg:golang/std@1.26.8","name":"std","version":"1.26.8","purl":"pkg:golang/std@1.26.8"},` +
		`{"type":"library","bom-ref":"pkg:golang/example.com/a@v1.2.3","name":"example.com/a","version":"v1.2.3","purl":"pkg:golang/example.com/a@v1.2.3","properties":[{"name":"go.sum","value":"h1:abc="}]},` +
		`{"type":"library","bom-ref":"pkg:golang/example.com/c@v2.0.0","name":"example.com/c","version":"v2.0.0","purl":"pkg:golang/example.com/c@v2.0.0"}]}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

package sidecar

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

var (
	maxLine = regexp.MustCompile(`^[\s\v\x{85}\p{Z}]*([0-9]+) ([0-9]+)[\s\v\x{85}\p{Z}]*$`)
	natural = regexp.MustCompile(`^[\s\v\x{85}\p{Z}]*([0-9]+)[\s\v\x{85}\p{Z}]*$`)
)

// FuzzContainerLimits parses arbitrary cgroup files. It compares the limits with the results of a parser
// that uses regular expressions and big integers. If the parser does not match a file, there is no limit.
func FuzzContainerLimits(f *testing.F) {
	f.Add("67108864\n", "", "30000 100000\n", "", "")
	f.Add("max\n", "9223372036854771712\n", "max 100000\n", "-1\n", "100000\n")
	f.Add("", "67108864\n", "", "5000\n", "100000\n")
	f.Add("18446744073709551615", "-0", "NaN 1", "inf", "1e3")
	f.Add("+1", "0", "+1 2", "+1", "2")
	f.Add("0", "1\v", "", "", "")
	f.Fuzz(func(t *testing.T, max2, max1, cpu2, quota, period string) {
		files := fstest.MapFS{}
		for name, text := range map[string]string{
			"memory.max": max2, "memory/memory.limit_in_bytes": max1,
			"cpu.max": cpu2, "cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": period,
		} {
			if text != "" {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
		}

		memory := int64(0)
		for _, text := range []string{max2, max1} {
			m := natural.FindStringSubmatch(text)
			if m == nil || memory != 0 {
				continue
			}
			if n, _ := new(big.Int).SetString(m[1], 10); n.BitLen() <= 50 {
				memory = n.Int64()
			}
		}
		harness.Equal(t, containerMemory(files), memory, max2, max1, "bytes")

		share, of := natural.FindStringSubmatch(quota), natural.FindStringSubmatch(period)
		cpus := math.Inf(1)
		if m := maxLine.FindStringSubmatch(cpu2); m != nil {
			cpus = ratio(m[1], m[2])
		} else if !strings.Contains(strings.TrimSpace(cpu2), " ") && share != nil && of != nil {
			cpus = ratio(share[1], of[1])
		}
		harness.Equal(t, containerCPUs(files), cpus, cpu2, quota, "of", period, "CPUs")
	})
}

// ratio divides two natural numbers. It returns +Inf if one of them is 0 or does not fit into 63
// bits.
func ratio(a, b string) float64 {
	n, _ := new(big.Int).SetString(a, 10)
	of, _ := new(big.Int).SetString(b, 10)
	if n.Sign() == 0 || of.Sign() == 0 || !n.IsInt64() || !of.IsInt64() {
		return math.Inf(1)
	}
	return float64(n.Int64()) / float64(of.Int64())
}

// FuzzLogging builds a logger from an arbitrary configuration that names no files. NewLogger always
// returns a logger. If the configuration is not valid JSON, NewLogger returns the default logger and
// logs the error as one line of JSON.
func FuzzLogging(f *testing.F) {
	f.Add(`{"level":"debug","encoding":"console"}`, "")
	f.Add(`{"level":null,"encoderConfig":{"timeEncoder":"iso8601","lineEnding":"x"}}`, "warn")
	f.Add(`{"sampling":{"initial":-1,"thereafter":0},"initialFields":{"a":[1]}}`, "loud")
	f.Add(`null`, "-1")
	f.Add(`{"level":"info","encoding":"none"`, "error")
	out, err := os.Create(filepath.Join(f.TempDir(), "stderr"))
	harness.NoError(f, err)
	was := os.Stderr
	f.Cleanup(func() { os.Stderr = was; out.Close() })
	f.Fuzz(func(t *testing.T, text, level string) {
		var named map[string]any
		isObject := json.Unmarshal([]byte(text), &named) == nil
		for name := range named {
			if strings.EqualFold(name, "outputPaths") || strings.EqualFold(name, "errorOutputPaths") {
				return
			}
		}
		harness.NoError(t, out.Truncate(0))
		if _, err := out.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		c := config.Default()
		c.LoggingConfig.V, c.LoggingLevel.V = text, level
		os.Stderr = out
		log, now, warnings := NewLogger(c)
		log.Error("something", zap.String("name", text), zap.Ints("numbers", []int{1}))
		os.Stderr = was
		harness.Equal(t, log.Level(), now.Level(), text, level, "the level")
		if text == "" || isObject || level != "" {
			return
		}
		written, err := os.ReadFile(out.Name())
		harness.NoError(t, err)
		lines := bytes.SplitAfter(bytes.TrimSuffix(written, []byte("\n")), []byte("\n"))
		for _, line := range lines {
			var v map[string]any
			harness.Equal(t, json.Unmarshal(line, &v), nil, text, "the line", line)
		}
		if len(lines) != 1 || len(warnings) != 1 || !strings.HasPrefix(warnings[0], "SERVING_LOGGING_CONFIG: ") {
			t.Errorf("%q: got lines %q and warnings %q, want one line and a warning about the setting", text, lines, warnings)
		}
	})
}

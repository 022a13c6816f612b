package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	chartName   = "queue-proxy-injector"
	chartFolder = "deploy/chart/" + chartName
)

var (
	chartVersion = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)
	chartImage   = regexp.MustCompile(`(?m)^(  (injector|sidecar): ).*$`)
)

// packChart returns the chart as a Helm package with the given version and images, and the name of
// the package file. Symbolic links are replaced with their targets.
func packChart(root, version string, i images, made time.Time) (file string, packed []byte, err error) {
	var names []string
	folder := filepath.Join(root, chartFolder)
	for _, pattern := range []string{"*", ".helmignore", "templates/*", "files/*"} {
		found, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			return "", nil, err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	entries := []entry{}
	for _, name := range slices.Compact(names) {
		if info, err := os.Stat(name); err != nil || info.IsDir() {
			if err != nil {
				return "", nil, err
			}
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return "", nil, err
		}
		within, err := filepath.Rel(folder, name)
		if err != nil {
			return "", nil, err
		}
		if text, err = chartText(within, text, version, i); err != nil {
			return "", nil, err
		}
		entries = append(entries, entry{chartName + "/" + filepath.ToSlash(within), 0o644, text})
	}
	packed, err = packTar(entries, made)
	return fmt.Sprintf("%s-%s.tgz", chartName, strings.TrimPrefix(version, "v")), packed, err
}

// chartText sets the version and the images in a file of the chart.
func chartText(name string, text []byte, version string, i images) ([]byte, error) {
	set := func(pattern *regexp.Regexp, want int, f func(key string) string) ([]byte, error) {
		found := 0
		text = pattern.ReplaceAllFunc(text, func(line []byte) []byte { found++; return []byte(f(string(line))) })
		if found != want {
			return nil, fmt.Errorf("%s: found %d lines that match the pattern, want %d", name, found, want)
		}
		return text, nil
	}
	switch name {
	case "Chart.yaml":
		return set(chartVersion, 2, func(line string) string {
			key, _, _ := strings.Cut(line, ":")
			return key + ": " + strings.TrimPrefix(version, "v")
		})
	case "values.yaml":
		if i.sidecar == "" || i.injector == "" {
			return nil, errors.New("values.yaml: want both images")
		}
		return set(chartImage, 2, func(line string) string {
			if strings.HasPrefix(line, "  sidecar:") {
				return "  sidecar: " + i.sidecar
			}
			return "  injector: " + i.injector
		})
	}
	return text, nil
}

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/queue-proxy/queue-proxy/pkg/plugin"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// newTestLive returns a live view in a window, after a round with rows.
func newTestLive(width, height int, rows ...plugin.Row) *live {
	m := newLive(commandLine{sort: "name", by: byPod, interval: time.Second}, "shop", func() newsMsg { return newsMsg{rows: rows} })
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	m.Update(newsMsg{rows: rows})
	return m
}

// screen returns the lines of a live view without styles.
func screen(m *live) []string { return strings.Split(ansi.Strip(m.View().Content), "\n") }

// press sends keys to a live view. It reports whether the last key quits.
func press(m *live, keys ...string) (quits bool) {
	special := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "end": tea.KeyEnd, "home": tea.KeyHome, "pgdown": tea.KeyPgDown}
	for _, k := range keys {
		msg := tea.KeyPressMsg{Code: []rune(k)[0], Text: k}
		if code, ok := special[k]; ok {
			msg = tea.KeyPressMsg{Code: code}
		}
		_, cmd := m.Update(msg)
		quits = false
		if cmd != nil && !m.filter.Focused() {
			_, quits = cmd().(tea.QuitMsg)
		}
	}
	return quits
}

// manyRows returns n rows with the names web-00, web-01 and so on.
func manyRows(n int) []plugin.Row {
	rows := make([]plugin.Row, n)
	for i := range rows {
		rows[i] = plugin.Row{Namespace: "shop", Pod: fmt.Sprintf("web-%02d", i), State: plugin.Ready, Waiting: new(i)}
	}
	return rows
}

func TestLiveFitsInWindow(t *testing.T) {
	rows := append(manyRows(30), plugin.Row{Pod: strings.Repeat("long-", 30) + "name", State: plugin.Unknown, Note: strings.Repeat("note ", 30)})
	for width := 1; width < 200; width += 7 {
		for height := 1; height < 30; height++ {
			lines := screen(newTestLive(width, height, rows...))
			if height >= 5 && len(lines) > height {
				t.Fatalf("%d x %d: got %d lines", width, height, len(lines))
			}
			for _, line := range lines {
				if width >= 40 && height >= 5 && ansi.StringWidth(line) > width {
					t.Fatalf("%d x %d: got line %q", width, height, line)
				}
			}
		}
	}
}

func TestNarrowWindowKeepsImportantColumns(t *testing.T) {
	row := plugin.Row{Namespace: "shop", Pod: "a-long-name-of-a-workload-6f5d88c9c7-2xvbn", State: plugin.Draining, Running: new(12), Limit: new(100), Failure: "queue-full", Failures: map[string]int{"queue-full": 1}}
	lines := screen(newTestLive(40, 10, row))
	harness.Equal(t, strings.TrimRight(lines[2], " "), "POD                READY     RUN/LIMIT")
	harness.Equal(t, strings.TrimRight(lines[3], " "), "a-long-n…c7-2xvbn  draining     12/100")
	harness.Contains(t, screen(newTestLive(80, 10, row))[2], "RUN/LIMIT  WAITING")
}

func TestLiveCutsPodNamesInMiddle(t *testing.T) {
	m := newTestLive(90, 10, plugin.Row{Pod: "a-name-that-is-much-longer-than-the-window-6f5d88c9c7-2xvbn", State: plugin.Ready})
	line := screen(m)[3]
	if !strings.HasPrefix(line, "a-name") || !strings.Contains(line, "…") || !strings.Contains(line, "-2xvbn ") {
		t.Errorf("got %q, want the start and the end of the name", line)
	}
}

func TestLiveSortsByNextColumn(t *testing.T) {
	m := newTestLive(120, 20, manyRows(3)...)
	harness.Contains(t, screen(m)[3], "web-00")
	press(m, "s")
	harness.Contains(t, screen(m)[0], "sorted by waiting")
	harness.Contains(t, screen(m)[3], "web-02")
}

func TestLiveFiltersRows(t *testing.T) {
	m := newTestLive(120, 20, append(manyRows(3), plugin.Row{Pod: "db", State: plugin.NotReady, Note: "not ready: Quota"})...)
	for _, test := range []struct {
		keys []string
		want string
	}{
		{[]string{"/", "q", "u", "o", "enter"}, "db"}, // while the user edits the filter, q does not quit
		{[]string{"/", "x"}, ""},
		{[]string{"esc"}, "db web-00 web-01 web-02"},
		{[]string{"/", "0", "1", "enter"}, "web-01"},
		{[]string{"esc"}, "db web-00 web-01 web-02"},
	} {
		press(m, test.keys...)
		var pods []string
		for _, r := range m.table.Rows() {
			pods = append(pods, ansi.Strip(r[0]))
		}
		harness.Equal(t, strings.Join(pods, " "), test.want, test.keys)
	}
	if !press(m, "q") {
		t.Error("the program is still running after q")
	}
}

func TestLiveScrollsToEachRow(t *testing.T) {
	m := newTestLive(120, 12, manyRows(40)...)
	for _, test := range []struct{ key, want string }{{"end", "web-39"}, {"home", "web-00"}, {"pgdown", "web-07"}, {"G", "web-39"}, {"k", "web-38"}} {
		press(m, test.key)
		lines := screen(m)
		harness.Contains(t, strings.Join(lines, "\n"), test.want, test.key)
		harness.Contains(t, lines[len(lines)-1], "quit", test.key)
		harness.Equal(t, strings.TrimSpace(ansi.Strip(m.table.SelectedRow()[0])), test.want, test.key)
	}
	m.Update(newsMsg{rows: manyRows(40)})
	harness.Equal(t, ansi.Strip(m.table.SelectedRow()[0]), "web-38", "selected row after a round")
	m.Update(newsMsg{})
	m.Update(newsMsg{rows: manyRows(2)})
	harness.Contains(t, strings.Join(screen(m), "\n"), "web-01")
}

func TestLiveKeepsSelectionAfterResize(t *testing.T) {
	m := newTestLive(120, 20, manyRows(9)...)
	press(m, "j", "j", "j")
	for _, width := range []int{narrowWidth - 1, narrowWidth} {
		m.Update(tea.WindowSizeMsg{Width: width, Height: 20})
		harness.Equal(t, strings.TrimSpace(ansi.Strip(m.table.SelectedRow()[0])), "web-03", width)
	}
}

func TestLiveShowsProblemNextToFilter(t *testing.T) {
	m := newTestLive(120, 20, manyRows(3)...)
	press(m, "/", "w", "e", "b")
	m.Update(newsMsg{rows: manyRows(3), problem: errors.New("list of pods: forbidden")})
	harness.Equal(t, strings.TrimSpace(screen(m)[1]), "filter: web", "while the filter is edited")
	press(m, "enter")
	harness.Equal(t, strings.TrimSpace(screen(m)[1]), "filter: web   list of pods: forbidden")
	m.Update(newsMsg{rows: manyRows(3)})
	harness.Equal(t, strings.TrimSpace(screen(m)[1]), "filter: web", "without a problem")
}

func TestLiveShowsNoteOfSelectedRow(t *testing.T) {
	m := newTestLive(80, 24, plugin.Row{Pod: "a", State: plugin.Ready, Running: new(2), Limit: new(4)}, plugin.Row{Pod: "b", State: plugin.NotReady, Note: "not ready: refused"})
	harness.Contains(t, screen(m)[2], "RUN/LIMIT")
	harness.Contains(t, screen(m)[3], " 2/4 ")
	note := func() string { all := screen(m); return strings.TrimSpace(all[len(all)-2]) }
	harness.Equal(t, note(), "1 of 2  a")
	press(m, "j")
	harness.Equal(t, note(), "2 of 2  b: not ready: refused")
	if strings.Contains(strings.Join(screen(m)[:20], "\n"), "refused") {
		t.Errorf("got %q, want the note only below the table", screen(m))
	}
	press(m, "/", "x")
	harness.Equal(t, note(), "", "without rows")
	harness.Contains(t, screen(newTestLive(120, 24))[2], "NOTE", "wide window")
}

func TestLiveSwitchesToWorkloads(t *testing.T) {
	rows := manyRows(64)
	for i := range rows {
		rows[i].Workload = "deployment/web"
	}
	rows = append(rows, plugin.Row{Namespace: "shop", Pod: "db-0", Workload: "statefulset/db", State: plugin.Ready})
	m := newTestLive(80, 24, rows...)
	press(m, "end", "w")
	text := strings.Join(screen(m), "\n")
	for _, want := range []string{"65 sidecars", "WORKLOAD", "deployment/web  64/64", "statefulset/db  1/1", "1 of 2  deployment/web"} {
		harness.Contains(t, text, want)
	}
	press(m, "/", "d", "b", "enter")
	harness.Contains(t, strings.Join(screen(m), "\n"), "1 of 1  statefulset/db")
	press(m, "esc", "w")
	harness.Contains(t, strings.Join(screen(m), "\n"), "1 of 65  db-0")
}

func TestLiveHelpShowsAllKeys(t *testing.T) {
	m := newTestLive(120, 20, manyRows(40)...)
	press(m, "?")
	text := strings.Join(screen(m), "\n")
	for _, want := range []string{"sort", "filter", "clear filter", "page down", "go to end", "quit"} {
		harness.Contains(t, text, want)
	}
	if lines := screen(m); len(lines) > 20 {
		t.Errorf("got %d lines, want at most 20", len(lines))
	}
}

func TestLiveShowsProblem(t *testing.T) {
	m := newTestLive(120, 20)
	harness.Contains(t, screen(m)[1], "no sidecars found")
	m.Update(newsMsg{rows: manyRows(1), problem: errors.New("list of pods: \x1b[2Jforbidden")})
	harness.Contains(t, screen(m)[1], "list of pods: \ufffd[2Jforbidden")
	m.Update(newsMsg{rows: manyRows(1), more: true})
	harness.Contains(t, screen(m)[1], "more than 1000 sidecars")
	m.Update(newsMsg{rows: manyRows(1)})
	press(m, "/", "z", "enter")
	harness.Contains(t, screen(m)[1], "filter: z   no row matches")
	harness.Contains(t, screen(newLive(commandLine{}, "", nil))[1], "waiting for the first results")
}

func TestLiveColorsRowsByState(t *testing.T) {
	m := newTestLive(120, 20, plugin.Row{Pod: "a", State: plugin.Ready}, plugin.Row{Pod: "b", State: plugin.NotReady}, plugin.Row{Pod: "c", State: plugin.Unknown})
	for pod, want := range map[string]string{"b": "\x1b[31mb", "c": "\x1b[33mc"} {
		harness.Contains(t, m.View().Content, want, pod)
	}
	harness.Contains(t, screen(m)[0], "namespace shop   3 sidecars, 1 not ready, 1 unknown")
}

func TestLiveStartsNextRound(t *testing.T) {
	m := newTestLive(120, 20, manyRows(1)...)
	_, cmd := m.Update(roundMsg{})
	if news, ok := cmd().(newsMsg); !ok || len(news.rows) != 1 {
		t.Errorf("got %v, want the result of a round of scrapes", news)
	}
	if _, cmd := m.Update(newsMsg{}); cmd == nil {
		t.Error("got no command after a round, want a timer")
	}
}

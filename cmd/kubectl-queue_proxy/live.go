package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/bubbles/v2/help"
	"charm.land/bubbles/v2/key"
	"charm.land/bubbles/v2/table"
	"charm.land/bubbles/v2/textinput"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/plugin"
)

// gap is the space between two columns, in characters.
const gap = 2

// narrowWidth is the width of a window, in characters, below which the note has no column.
const narrowWidth = 110

// Messages of the live view.
type (
	roundMsg struct{}  // starts a round
	clockMsg time.Time // updates the clock and the ages
	newsMsg  struct {  // result of a round
		rows    []plugin.Row
		more    bool  // there are more sidecars than rows
		problem error // error of the last update; nil if the rows are current
	}
)

// keyMap contains the keys of the live view in addition to the keys of the table.
type keyMap struct {
	table.KeyMap
	sort, workloads, filter, clear, help, quit key.Binding
}

func newKeyMap() keyMap {
	binding := func(keys, text string) key.Binding {
		all := strings.Split(keys, " ")
		return key.NewBinding(key.WithKeys(all...), key.WithHelp(all[0], text))
	}
	return keyMap{
		KeyMap: table.DefaultKeyMap(),
		sort:   binding("s", "sort"), workloads: binding("w", "pods or workloads"),
		filter: binding("/", "filter"), clear: binding("esc", "clear filter"),
		help: binding("? h", "help"), quit: binding("q Q ctrl+c", "quit"),
	}
}

// ShortHelp implements [help.KeyMap].
func (k keyMap) ShortHelp() []key.Binding {
	return []key.Binding{k.sort, k.workloads, k.filter, k.help, k.quit}
}

// FullHelp implements [help.KeyMap].
func (k keyMap) FullHelp() [][]key.Binding {
	return append([][]key.Binding{{k.sort, k.workloads, k.filter, k.clear}, {k.help, k.quit}}, k.KeyMap.FullHelp()...)
}

// Styles of the live view. Bubble Tea removes colors if NO_COLOR is set.
func bold() lipgloss.Style  { return lipgloss.NewStyle().Bold(true) }
func alarm() lipgloss.Style { return lipgloss.NewStyle().Foreground(lipgloss.Red) }

// styleOf returns the style of a row.
func styleOf(s plugin.State) lipgloss.Style {
	switch s {
	case plugin.NotReady:
		return alarm()
	case plugin.Unknown, plugin.Draining:
		return lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	}
	return lipgloss.NewStyle()
}

// live is the model of the live view. It implements [tea.Model].
type live struct {
	line  commandLine
	title string
	round func() newsMsg

	width, height int
	now           time.Time
	known         bool // the first result has arrived
	news          newsMsg

	keys   keyMap
	rows   []plugin.Row // rows of the table: sorted, without the rows that the filter hides
	table  table.Model
	filter textinput.Model
	help   help.Model
}

// live shows the sidecars until the user quits or ctx is canceled.
func (p *program) live(ctx context.Context, line commandLine, namespace string, c *collector) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := newLive(line, namespace, func() newsMsg { return c.news(ctx) })
	view := tea.NewProgram(m, tea.WithInput(p.stdin), tea.WithOutput(p.stdout), tea.WithEnvironment(p.environ), tea.WithoutSignalHandler())
	// Quit waits for the reader of the input before the program closes the input.
	// tea.WithContext does not wait.
	defer context.AfterFunc(ctx, view.Quit)()
	_, err := view.Run()
	return err
}

func newLive(line commandLine, namespace string, round func() newsMsg) *live {
	m := &live{line: line, title: "all namespaces", round: round, now: time.Now(), keys: newKeyMap(), filter: textinput.New(), help: help.New()}
	if namespace != "" {
		m.title = "namespace " + namespace
	}
	cell := lipgloss.NewStyle().PaddingRight(gap)
	m.table = table.New(table.WithFocused(true), table.WithStyles(table.Styles{Header: cell.Bold(true), Cell: cell, Selected: lipgloss.NewStyle().Reverse(true)}))
	m.filter.Prompt = "filter: "
	m.filter.SetValue(line.filter)
	m.help.Styles = help.Styles{} // disable the colors of the help, because they are unreadable on some backgrounds
	return m
}

// Init implements [tea.Model].
func (m *live) Init() tea.Cmd { return tea.Batch(m.nextRound, tick()) }

func (m *live) nextRound() tea.Msg { return m.round() }

func tick() tea.Cmd { return tea.Every(time.Second, func(t time.Time) tea.Msg { return clockMsg(t) }) }

// Update implements [tea.Model].
func (m *live) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case roundMsg:
		return m, m.nextRound
	case newsMsg:
		m.news, m.known = msg, true
		cmd = tea.Tick(m.line.interval, func(time.Time) tea.Msg { return roundMsg{} })
	case clockMsg:
		m.now = time.Time(msg)
		cmd = tick()
	case tea.KeyPressMsg:
		cmd = m.press(msg)
	default:
		m.filter, cmd = m.filter.Update(msg) // messages for the cursor, and pasted text
	}
	m.layout()
	return m, cmd
}

// press handles a key.
func (m *live) press(msg tea.KeyPressMsg) tea.Cmd {
	var cmd tea.Cmd
	switch {
	case msg.String() == "ctrl+c":
		return tea.Quit
	case msg.String() == "ctrl+z":
		return tea.Suspend
	case key.Matches(msg, m.keys.clear):
		m.filter.Reset()
		m.filter.Blur()
	case m.filter.Focused() && msg.String() == "enter":
		m.filter.Blur()
	case m.filter.Focused():
		m.filter, cmd = m.filter.Update(msg)
	case key.Matches(msg, m.keys.quit):
		return tea.Quit
	case key.Matches(msg, m.keys.sort):
		all := plugin.Keys()
		m.line.sort = all[(slices.Index(all, m.line.sort)+1)%len(all)]
	case key.Matches(msg, m.keys.workloads):
		if m.line.by == byPod {
			m.line.by = byWorkload
		} else {
			m.line.by = byPod
		}
		m.table.GotoTop()
	case key.Matches(msg, m.keys.filter):
		return m.filter.Focus()
	case key.Matches(msg, m.keys.help):
		m.help.ShowAll = !m.help.ShowAll
	default:
		m.table, cmd = m.table.Update(msg)
	}
	return cmd
}

// layout computes the table from the rows, the filter and the size of the window.
func (m *live) layout() {
	m.line.filter = m.filter.Value()
	m.rows = m.line.arrange(m.news.rows)
	columns := m.line.layout(m.width < narrowWidth).Columns()
	cells := plugin.Table(columns, m.rows, m.now)
	widths, fits := fit(columns, cells, m.width)
	for i := leastImportant(columns); i >= 0 && !fits; i = leastImportant(columns) {
		columns = slices.Delete(columns, i, i+1)
		cells = plugin.Table(columns, m.rows, m.now)
		widths, fits = fit(columns, cells, m.width)
	}
	titles, shown := cells[0], make([]table.Row, len(m.rows))
	for i, row := range cells[1:] {
		shown[i] = row
	}
	all := make([]table.Column, len(titles))
	for i, title := range titles {
		all[i] = table.Column{Title: title, Width: widths[i]}
	}
	cursor := m.table.Cursor()
	if len(all) != len(m.table.Columns()) {
		m.table.SetRows(nil) // the table cannot render rows that have more cells than it has columns
	}
	m.table.SetColumns(all)
	m.table.SetRows(shown)
	m.table.SetCursor(max(0, cursor)) // the cursor is -1 if the table previously had no rows
	for i, row := range shown {
		for j := range row {
			if columns[j].Name {
				row[j] = cutMiddle(row[j], widths[j])
			}
			if m.rows[i].State != plugin.Ready && i != m.table.Cursor() {
				row[j] = styleOf(m.rows[i].State).Render(row[j])
			}
		}
	}
	m.table.SetWidth(m.width)
	m.help.SetWidth(m.width)
	around := 2 + lipgloss.Height(m.help.View(m.keys)) // number of lines above and below the table
	if m.showsSelected() {
		around++
	}
	m.table.SetHeight(max(2, m.height-around))
}

// leastImportant returns the index of the next column to omit in a narrow window, or -1.
func leastImportant(columns []plugin.Column) int {
	i := len(columns) - 1
	for i >= 0 && columns[i].Keep {
		i--
	}
	return i
}

// fit returns the widths of the columns of a table with the given cells. While the sum is greater than width, fit
// reduces the column whose width exceeds the minimum width by the largest amount. fits reports whether the sum is
// at most width.
func fit(columns []plugin.Column, cells [][]string, width int) (widths []int, fits bool) {
	widths = make([]int, len(columns))
	over := -width
	for i := range columns {
		for _, row := range cells {
			widths[i] = max(widths[i], lipgloss.Width(row[i]))
		}
		over += widths[i] + gap
	}
	for ; over > 0; over-- {
		widest, spare := 0, 0
		for i, c := range columns {
			if c.Min > 0 && widths[i]-c.Min > spare {
				widest, spare = i, widths[i]-c.Min
			}
		}
		if spare == 0 {
			return widths, false
		}
		widths[widest]--
	}
	return widths, true
}

// cutMiddle cuts a name in the middle, because the pod names of a workload differ at the end.
func cutMiddle(name string, width int) string {
	all := []rune(name)
	if len(all) <= width || width < 1 {
		return name
	}
	head := (width - 1) / 2
	return string(all[:head]) + "…" + string(all[len(all)-(width-1-head):])
}

// View implements [tea.Model].
func (m *live) View() tea.View {
	parts := []string{m.header(), m.status(), m.table.View()}
	if m.showsSelected() {
		parts = append(parts, m.selected())
	}
	parts = append(parts, lipgloss.NewStyle().MaxWidth(m.width).Render(m.help.View(m.keys)))
	v := tea.NewView(strings.Join(parts, "\n"))
	v.AltScreen = true
	return v
}

// header returns the first line: the namespace, the number of sidecars in each state, and the sort order. If the window
// is wide enough, it also contains the time.
func (m *live) header() string {
	counts := map[plugin.State]int{}
	for _, r := range m.news.rows {
		counts[r.State]++
	}
	left := fmt.Sprintf("%s   %d sidecars", m.title, len(m.news.rows))
	for _, state := range []plugin.State{plugin.NotReady, plugin.Unknown, plugin.Draining} {
		if counts[state] > 0 {
			left += fmt.Sprintf(", %d %s", counts[state], strings.ReplaceAll(string(state), "-", " "))
		}
	}
	right := "   sorted by " + m.line.sort
	if timed := right + "   " + m.now.Format(time.TimeOnly); lipgloss.Width(left+timed) <= m.width {
		right = timed
	}
	if lipgloss.Width(left+right) > m.width {
		right = ""
	}
	return bold().MaxWidth(m.width).Render(message.Printable(left)) + lipgloss.PlaceHorizontal(max(0, m.width-lipgloss.Width(left)), lipgloss.Right, right)
}

// status returns the second line: the filter and a problem. While the user edits the filter, it only contains the
// filter.
func (m *live) status() string {
	if m.filter.Focused() {
		return m.filter.View()
	}
	line := alarm().Render(message.Printable(m.problem()))
	if filter := m.filter.Value(); filter != "" {
		line = message.Printable(m.filter.Prompt+filter+"   ") + line
	}
	return lipgloss.NewStyle().MaxWidth(m.width).Render(line)
}

// problem returns a message about outdated or missing rows, or "" if there is no problem.
func (m *live) problem() string {
	switch {
	case m.news.problem != nil:
		return m.news.problem.Error()
	case m.news.more:
		return fmt.Sprintf("there are more than %d sidecars; use -l to select sidecars", plugin.MaxSidecars)
	case !m.known:
		return "waiting for the first results"
	case len(m.news.rows) == 0:
		return "no sidecars found; checking again in " + listInterval.String()
	case len(m.rows) == 0:
		return "no row matches"
	}
	return ""
}

// showsSelected reports whether the window is tall enough for the line below the table.
func (m *live) showsSelected() bool { return m.height > 5 }

// selected returns the line below the table: the position, the complete name and the note of the selected row.
func (m *live) selected() string {
	i := m.table.Cursor()
	if i < 0 || i >= len(m.rows) {
		return ""
	}
	r := m.rows[i]
	text := fmt.Sprintf("%d of %d  %s", i+1, len(m.rows), cmp.Or(r.Pod, r.Workload))
	if r.Note != "" {
		text += ": " + r.Note
	}
	return lipgloss.NewStyle().MaxWidth(m.width).Render(message.Printable(text))
}

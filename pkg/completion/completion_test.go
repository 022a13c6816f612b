package completion

import (
	"flag"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func sample() Program {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.Bool("quiet", false, "")
	flags.String("o", "", "")
	flags.String("on-refusal", "", "")
	flags.String("file", "", "")
	own := flag.NewFlagSet("", flag.ContinueOnError)
	own.Int("period", 0, "")
	return Program{Name: "some-program", Flags: own, Commands: []Command{
		{Name: "edit", Flags: flags, Values: map[string][]string{"o": {"yaml", "json"}, "on-refusal": {"fail", "skip"}}},
		{Name: "end", Args: []string{"now", "never"}},
	}}
}

// offered is what a real bash offers for the last of some words. Blanks stand between the words,
// as bash cuts them: = is one of its own.
func offered(t *testing.T, script, line string) string {
	t.Helper()
	words := strings.Split(line, " ")
	for i, w := range words {
		words[i] = "'" + w + "'"
	}
	ask := script + "\nCOMP_WORDS=(" + strings.Join(words, " ") + ")\nCOMP_CWORD=" + strconv.Itoa(len(words)-1) + "\n_some_program\necho \"${COMPREPLY[@]}\"\n"
	out, err := exec.Command("bash", "-c", ask).CombinedOutput()
	harness.NoError(t, err, line, out)
	return strings.TrimSuffix(string(out), "\n")
}

func TestBashOffersCommandsFlagsAndTheirValues(t *testing.T) {
	script, err := sample().Script("bash")
	harness.NoError(t, err)
	for line, want := range map[string]string{
		"some-program ":                         "edit end",
		"some-program ed":                       "edit",
		"some-program -":                        "-help -period",
		"some-program --":                       "--help --period",
		"some-program -period ":                 "",
		"some-program -period 3 e":              "edit end",
		"some-program edit ":                    "-file -help -o -on-refusal -quiet",
		"some-program edit -o":                  "-o -on-refusal",
		"some-program edit --on":                "--on-refusal",
		"some-program edit -o ":                 "yaml json",
		"some-program edit -o y":                "yaml",
		"some-program edit -quiet -o j":         "json",
		"some-program edit --o j":               "json",
		"some-program edit --on-refusal =":      "fail skip",
		"some-program edit --on-refusal = s":    "skip",
		"some-program edit --on-refusal=s":      "--on-refusal=skip", // zsh's way
		"some-program edit -file ":              "",                  // bash goes on with files
		"some-program edit -file -":             "",
		"some-program edit -quiet ":             "-file -help -o -on-refusal -quiet",
		"some-program edit x":                   "",
		"some-program end ":                     "now never",
		"some-program end ne":                   "never",
		"some-program end -":                    "",
		"some-program another ":                 "",
		"some-program another -":                "",
		"some-program edit -on-refusal skip -q": "-quiet",
	} {
		harness.Equal(t, offered(t, script, line), want, line)
	}
}

func TestFishKnowsWhichFlagsTakeAValue(t *testing.T) {
	script, err := sample().Script("fish")
	harness.NoError(t, err)
	const edit = "complete -c some-program -n '__fish_seen_subcommand_from edit' "
	for _, want := range []string{
		"complete -c some-program -n __fish_use_subcommand -f -a 'edit end'\n", edit + "-s o -x -a 'yaml json'\n", edit + "-o file -l file -r\n", edit + "-o quiet -l quiet\n",
		"complete -c some-program -n '__fish_seen_subcommand_from end' -f -a 'now never'\n",
	} {
		harness.Contains(t, script, want)
	}
}

func TestZshReadsBashsScript(t *testing.T) {
	zsh, err := sample().Script("zsh")
	bash, _ := sample().Script("bash")
	if err != nil || !strings.HasSuffix(zsh, bash) || !strings.Contains(zsh, "bashcompinit\n") {
		t.Errorf("got %v and\n%s\nwant what makes zsh read the script of bash, and that", err, zsh)
	}
}

func TestAnUnknownShellIsAnErrorThatNamesTheKnownOnes(t *testing.T) {
	if _, err := sample().Script("csh"); err == nil || !strings.Contains(err.Error(), "bash, zsh, fish") {
		t.Errorf("got %v, want an error that names the shells", err)
	}
}

package rules

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// A package variable must be an error, or a table that is not modified. The linter gochecknoglobals
// cannot check this rule, because it does not allow tables.
func TestPackagesHaveNoMutableVariables(t *testing.T) {
	for _, r := range plan {
		if !strings.HasPrefix(r.path, "pkg/") && !strings.HasPrefix(r.path, "cmd/") {
			continue
		}
		set := token.NewFileSet()
		var files []*ast.File
		for name, file := range parse(t, set, r.path) {
			if !strings.HasSuffix(name, "_test.go") {
				files = append(files, file)
			}
		}
		for _, name := range stateVariables(set, files) {
			if _, allowed := remembered[r.path+"."+name]; !allowed {
				t.Errorf("%s: package variable %s is neither an error nor a table; use a constant, a field or a parameter", r.path, name)
			}
		}
	}
}

// constructors are functions of the standard library. A variable that contains the result of such a
// function is a table, because the result is only read.
var constructors = []string{
	"errors.New", "fmt.Errorf",
	"netip.MustParseAddr", "netip.MustParsePrefix",
	"regexp.MustCompile", "strings.NewReplacer",
	"sync.OnceValue",
	"time.Date", "time.Unix",
}

// stateVariables returns the package variables that are neither errors nor tables, and the package
// variables that are changed by an assignment. It does not find modifications through a pointer or a
// method.
func stateVariables(set *token.FileSet, files []*ast.File) []string {
	assigned := assignedVariables(set, files)
	var names []string
	for _, file := range files {
		for _, d := range file.Decls {
			d, ok := d.(*ast.GenDecl)
			if !ok || d.Tok != token.VAR || isEmbedded(d.Doc) {
				continue
			}
			for _, spec := range d.Specs {
				v := spec.(*ast.ValueSpec)
				for i, name := range v.Names {
					constant := i < len(v.Values) && (strings.HasPrefix(strings.ToLower(name.Name), "err") || isTable(v.Values[i], files))
					if name.Name != "_" && !isEmbedded(v.Doc) && (!constant || assigned[name.Name]) {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names
}

func isEmbedded(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") })
}

// isTable reports whether an expression is an array, a slice, a map, a struct whose type is in the
// same package, or a call that returns a table.
func isTable(value ast.Expr, files []*ast.File) bool {
	switch v := value.(type) {
	case *ast.CompositeLit:
		_, own := v.Type.(*ast.Ident)
		return own || isTableType(v.Type)
	case *ast.CallExpr:
		switch f := v.Fun.(type) {
		case *ast.ArrayType: // the call is a conversion
			return true
		case *ast.FuncLit:
			return returnsTable(f.Type)
		case *ast.Ident:
			return slices.ContainsFunc(files, func(file *ast.File) bool {
				return slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
					made, ok := d.(*ast.FuncDecl)
					return ok && made.Recv == nil && made.Name.Name == f.Name && returnsTable(made.Type)
				})
			})
		case *ast.SelectorExpr:
			return slices.Contains(constructors, types.ExprString(f))
		}
	}
	return false
}

func returnsTable(f *ast.FuncType) bool {
	return f.Results != nil && len(f.Results.List) == 1 && isTableType(f.Results.List[0].Type)
}

func isTableType(e ast.Expr) bool {
	switch e.(type) {
	case *ast.ArrayType, *ast.MapType:
		return true
	}
	return false
}

// assignedVariables returns the package variables that a statement assigns to, increments, deletes
// from, clears or copies to.
func assignedVariables(set *token.FileSet, files []*ast.File) map[string]bool {
	// The types of other packages are not necessary, so the errors of the type checker are ignored.
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: noImports{}, Error: func(error) {}}
	self, _ := conf.Check("self", set, files, info)
	assigned := map[string]bool{}
	add := func(targets ...ast.Expr) {
		for _, target := range targets {
			if v, ok := info.Uses[rootName(target)].(*types.Var); ok && v.Parent() == self.Scope() {
				assigned[v.Name()] = true
			}
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				add(n.Lhs...)
			case *ast.IncDecStmt:
				add(n.X)
			case *ast.RangeStmt:
				add(n.Key, n.Value)
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && slices.Contains([]string{"clear", "copy", "delete"}, f.Name) {
					add(n.Args[0])
				}
			}
			return true
		})
	}
	return assigned
}

// rootName returns the identifier at the beginning of an expression, such as x in x.f[i].
func rootName(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// noImports is an importer that returns an error for each package.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not imported") }

func TestStateVariablesAreFound(t *testing.T) {
	for code, want := range map[string]string{
		`var client = &http.Client{}`:                                  "client",
		`var pool = sync.Pool{}`:                                       "pool",
		`var mu sync.Mutex`:                                            "mu",
		`var n int`:                                                    "n",
		`var n = 5`:                                                    "n",
		`var now = time.Now`:                                           "now",
		`var cache = make(map[string]int)`:                             "cache",
		`var table = []int{1}; func f() { table = nil }`:               "table",
		`var table = []int{1}; func f() { table[0]++ }`:                "table",
		`var table = map[int]int{}; func f() { delete(table, 1) }`:     "table",
		`type s struct{ n int }; var a = s{}; func f() { a.n++ }`:      "a",
		`var errA = errors.New("a"); func f() { errA = nil }`:          "errA",
		`var ErrFull = errors.New("full")`:                             "",
		`var errGone = &fault{"gone"}`:                                 "",
		`var _ error = (*fault)(nil)`:                                  "",
		`var words = map[string]int{"a": 1}`:                           "",
		`var crlf = []byte("\r\n")`:                                    "",
		`var token = func() (t [256]bool) { return t }()`:              "",
		`var token = tokens(); func tokens() [256]bool { panic(0) }`:   "",
		`var number = regexp.MustCompile("[0-9]+")`:                    "",
		`var words = []string{}; func f() { words := ""; words = "" }`: "",
		"//go:embed page.html\nvar page string":                        "",
	} {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, "a.go", "package a\n"+code, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(stateVariables(set, []*ast.File{file}), ","); got != want {
			t.Errorf("%s: got variables %q, want %q", code, got, want)
		}
	}
}

package rules

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

func TestNoPackageRemembersAnything(t *testing.T) {
	report(t, memories(readTree(t)))
}

// pure lists functions of the standard library whose result, once made, is only
// read: a variable made by one is as good as a constant. What sync.OnceValue makes is
// such a result too, of whoever uses it first.
var pure = []string{
	"errors.New", "fmt.Errorf",
	"netip.MustParseAddr", "netip.MustParsePrefix",
	"regexp.MustCompile", "strings.NewReplacer",
	"sync.OnceValue",
	"time.Date", "time.Unix",
}

// memories returns a sentence for every init func and for every package
// variable that is more than an error or a table, in the production code of
// pkg and cmd. A table is an array, a slice, a map or a struct of ours that has
// its value from the start and to which nothing is assigned later, here or in
// another package.
//
// It goes by the text and the names in it, so it does not see a write through
// a pointer, a method or an alias; reviewers do.
func memories(tr tree) []string {
	var complaints []string
	folders := map[string][]source{}
	for _, s := range tr.sources {
		if !s.isTest() && (within(s.folder(), "pkg") || within(s.folder(), "cmd")) {
			folders[s.folder()] = append(folders[s.folder()], s)
		}
	}
	written := writes(tr, folders)
	for folder, sources := range folders {
		for _, s := range sources {
			for _, d := range s.parsed.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil && d.Name.Name == "init" {
						complaints = append(complaints, s.path+": got an init func, want none: make the thing where it is used, or hand it in")
					}
				case *ast.GenDecl:
					if d.Tok == token.VAR {
						complaints = append(complaints, variables(folder, s, d, sources, written)...)
					}
				}
			}
		}
	}
	slices.Sort(complaints)
	return complaints
}

// variables checks one var declaration of a file.
func variables(folder string, s source, d *ast.GenDecl, sources []source, written map[string]bool) []string {
	var complaints []string
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		for i, name := range v.Names {
			full := folder + "." + name.Name
			if _, ok := remembered[full]; ok || name.Name == "_" || isEmbedded(d, v) {
				continue
			}
			var value ast.Expr
			if i < len(v.Values) {
				value = v.Values[i]
			}
			what := ""
			switch {
			case written[full]:
				what = "is assigned to after its declaration"
			case isErrorName(name.Name) && value != nil:
			case value == nil:
				what = "has no value from the start"
			case !isTable(value, sources):
				what = "is neither an error nor a table"
			}
			if what != "" {
				complaints = append(complaints, fmt.Sprintf("%s: got the package variable %s, which %s; want no package to remember anything: make it a const, a field or an argument",
					s.path, name.Name, what))
			}
		}
	}
	return complaints
}

func isErrorName(name string) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(name[:1])+name[1:], "err")
	return ok && (rest == "" || rest[:1] == strings.ToUpper(rest[:1]))
}

func isEmbedded(d *ast.GenDecl, v *ast.ValueSpec) bool {
	for _, doc := range []*ast.CommentGroup{d.Doc, v.Doc} {
		if doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") }) {
			return true
		}
	}
	return false
}

// isTable reports whether a value, as written, is one that is made to be read.
func isTable(value ast.Expr, sources []source) bool {
	switch v := value.(type) {
	case *ast.CompositeLit:
		return isTableType(v.Type) || isOwnType(v.Type)
	case *ast.CallExpr:
		switch f := v.Fun.(type) {
		case *ast.ArrayType: // a conversion: []byte("...")
			return true
		case *ast.FuncLit: // a table worked out at start
			return isTableResult(f.Type)
		case *ast.Ident:
			return slices.ContainsFunc(sources, func(s source) bool {
				return slices.ContainsFunc(s.parsed.Decls, func(d ast.Decl) bool {
					made, ok := d.(*ast.FuncDecl)
					return ok && made.Recv == nil && made.Name.Name == f.Name && isTableResult(made.Type)
				})
			})
		case *ast.SelectorExpr:
			return slices.Contains(pure, types.ExprString(f))
		}
	}
	return false
}

func isTableResult(f *ast.FuncType) bool {
	return f.Results != nil && len(f.Results.List) == 1 && isTableType(f.Results.List[0].Type)
}

func isTableType(e ast.Expr) bool {
	switch e.(type) {
	case *ast.ArrayType, *ast.MapType:
		return true
	}
	return false
}

// isOwnType reports whether a type is named in the same package. A type from
// elsewhere (sync.Pool, http.Client) is taken for state.
func isOwnType(e ast.Expr) bool {
	_, ok := e.(*ast.Ident)
	return ok
}

// writes returns the package variables, as "pkg/folder.name", that some statement
// of production code assigns to, counts up or down, deletes from, clears or
// copies into.
func writes(tr tree, folders map[string][]source) map[string]bool {
	written := map[string]bool{}
	for folder, sources := range folders {
		var files []*ast.File
		for _, s := range sources {
			files = append(files, s.parsed)
		}
		// Names are all that is wanted: what an import holds stays unknown,
		// and the errors that follow from it do not matter.
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		conf := types.Config{Importer: noImports{}, Error: func(error) {}}
		self, _ := conf.Check(tr.module+"/"+folder, tr.fset, files, info)
		note := func(e ast.Expr) {
			if v := rootOf(e, info); v == nil {
				return
			} else if imported, ok := info.Uses[v.pkg].(*types.PkgName); ok {
				if other, ok := tr.ours(imported.Imported().Path()); ok {
					written[other+"."+v.name.Name] = true
				}
			} else if o, ok := info.Uses[v.name].(*types.Var); ok && o.Parent() == self.Scope() {
				written[folder+"."+v.name.Name] = true
			}
		}
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, left := range n.Lhs {
						note(left)
					}
				case *ast.IncDecStmt:
					note(n.X)
				case *ast.RangeStmt:
					note(n.Key)
					note(n.Value)
				case *ast.CallExpr:
					if f, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && slices.Contains([]string{"clear", "copy", "delete"}, f.Name) {
						note(n.Args[0])
					}
				}
				return true
			})
		}
	}
	return written
}

// A variable is a name as it is spelt: x, or pkg.x.
type variable struct{ pkg, name *ast.Ident }

// rootOf returns the variable that is written to in the end: x of x.f[i].
func rootOf(e ast.Expr, info *types.Info) *variable {
	switch e := e.(type) {
	case *ast.Ident:
		return &variable{name: e}
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			if _, ok := info.Uses[x].(*types.PkgName); ok {
				return &variable{pkg: x, name: e.Sel}
			}
		}
		return rootOf(e.X, info)
	case *ast.IndexExpr:
		return rootOf(e.X, info)
	case *ast.SliceExpr:
		return rootOf(e.X, info)
	case *ast.StarExpr:
		return rootOf(e.X, info)
	case *ast.ParenExpr:
		return rootOf(e.X, info)
	}
	return nil
}

// noImports is an importer that knows no package.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not imported") }

package accesslog

import (
	"fmt"
	"net/http"
	"net/url"
	"reflect"
)

// unknownMethods are those that text/template could call and we cannot: none of them
// says anything about a request that has ended.
var unknownMethods = []string{
	"AppendBinary", "Clone", "Context", "JoinPath", "MarshalBinary", "MultipartReader", "Parse", "ParseForm", "ParseMultipartForm",
	"ResolveReference", "UnmarshalBinary", "Valid", "WithContext", "Write", "WriteProxy", "WriteSubset",
}

// method returns a method of what a template sees, bound to its receiver; nil: there
// is none of that name. [call] calls it.
func method(receiver any, name string) any {
	switch r := receiver.(type) {
	case *http.Request:
		switch name {
		case "Cookie":
			return r.Cookie
		case "Cookies":
			return r.Cookies
		case "CookiesNamed":
			return r.CookiesNamed
		case "FormValue":
			return r.FormValue
		case "PathValue":
			return r.PathValue
		case "PostFormValue":
			return r.PostFormValue
		case "ProtoAtLeast":
			return r.ProtoAtLeast
		case "Referer":
			return r.Referer
		case "UserAgent":
			return r.UserAgent
		}
	case http.Header:
		switch name {
		case "Get":
			return r.Get
		case "Values":
			return r.Values
		}
	case *url.URL:
		switch name {
		case "EscapedFragment":
			return r.EscapedFragment
		case "EscapedPath":
			return r.EscapedPath
		case "Hostname":
			return r.Hostname
		case "IsAbs":
			return r.IsAbs
		case "Port":
			return r.Port
		case "Query":
			return r.Query
		case "Redacted":
			return r.Redacted
		case "RequestURI":
			return r.RequestURI
		case "String":
			return r.String
		}
	case url.Values:
		switch name {
		case "Encode":
			return r.Encode
		case "Get":
			return r.Get
		case "Has":
			return r.Has
		}
	case *url.Userinfo:
		switch name {
		case "String":
			return r.String
		case "Username":
			return r.Username
		}
	case *http.Cookie:
		if name == "String" {
			return r.String
		}
	}
	return nil
}

// call calls what method has returned.
func call(f any, args []any) (any, error) {
	none := len(args) == 0
	var text string
	isText := false
	if len(args) == 1 {
		v := reflect.ValueOf(args[0])
		if isText = v.Kind() == reflect.String; isText {
			text = v.String()
		}
	}
	switch f := f.(type) {
	case func() string:
		if none {
			return f(), nil
		}
	case func() bool:
		if none {
			return f(), nil
		}
	case func() url.Values:
		if none {
			return f(), nil
		}
	case func() []*http.Cookie:
		if none {
			return f(), nil
		}
	case func(string) string:
		if isText {
			return f(text), nil
		}
	case func(string) bool:
		if isText {
			return f(text), nil
		}
	case func(string) []string:
		if isText {
			return f(text), nil
		}
	case func(string) []*http.Cookie:
		if isText {
			return f(text), nil
		}
	case func(string) (*http.Cookie, error):
		if isText {
			return f(text)
		}
	case func(int, int) bool:
		if len(args) == 2 {
			a, okA := args[0].(int)
			b, okB := args[1].(int)
			if okA && okB {
				return f(a, b), nil
			}
		}
	}
	return nil, fmt.Errorf("wrong arguments, want those of %T", f)
}

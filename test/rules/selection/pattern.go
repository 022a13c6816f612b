package main

import (
	"regexp"
	"slices"
	"strings"
)

// unmatched returns the alternatives in a pattern that match none of the names.
func unmatched(pattern string, names []string) ([]string, error) {
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err
	}
	var without []string
	for _, alternative := range alternatives(pattern) {
		re, err := regexp.Compile(alternative)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(names, re.MatchString) {
			without = append(without, alternative)
		}
	}
	return without, nil
}

// alternatives expands the alternations of a valid regular expression: "a(b|c)|d" becomes "ab", "ac" and "d". Character
// classes, groups with flags or names, and groups with a repetition are not changed.
func alternatives(pattern string) []string {
	all, _ := expand(pattern)
	return all
}

// expand expands a pattern up to the end or up to an unmatched closing parenthesis. It returns the alternatives and the
// remaining text.
func expand(s string) (all []string, rest string) {
	current := []string{""}
	for s != "" && s[0] != ')' {
		if s[0] == '|' {
			all, current, s = append(all, current...), []string{""}, s[1:]
			continue
		}
		parts, after := item(s)
		var product []string
		for _, before := range current {
			for _, part := range parts {
				product = append(product, before+part)
			}
		}
		current, s = product, after
	}
	return append(all, current...), s
}

// item returns the alternatives of the first item of a pattern, and the text after the item.
func item(s string) (parts []string, rest string) {
	n := 1
	switch s[0] {
	case '\\':
		n = min(2, len(s))
	case '[':
		n = classLength(s)
	case '(':
		inner, after := expand(strings.TrimPrefix(s[1:], "?:"))
		after = strings.TrimPrefix(after, ")")
		special := strings.HasPrefix(s, "(?") && !strings.HasPrefix(s, "(?:")
		if !special && (after == "" || !strings.ContainsRune("*+?{", rune(after[0]))) {
			return inner, after
		}
		n = len(s) - len(after)
	}
	return []string{s[:n]}, s[n:]
}

// classLength returns the length of the character class at the beginning of a pattern.
func classLength(s string) int {
	i := 1
	if strings.HasPrefix(s[i:], "^") {
		i++
	}
	for first := true; i < len(s); first = false {
		switch {
		case s[i] == '\\':
			i++
		case strings.HasPrefix(s[i:], "[:"):
			i += max(0, strings.Index(s[i:], ":]")+1)
		case s[i] == ']' && !first:
			return i + 1
		}
		i++
	}
	return len(s)
}

// topLevel removes the patterns of subtests from a pattern of go test -run. It returns an invalid pattern unchanged.
func topLevel(pattern string) string {
	if _, err := regexp.Compile(pattern); err != nil {
		return pattern
	}
	var all []string
	for _, alternative := range alternatives(pattern) {
		for i := 0; i < len(alternative); i++ {
			switch alternative[i] {
			case '[':
				i += classLength(alternative[i:]) - 1
			case '/':
				alternative = alternative[:i]
			}
		}
		all = append(all, alternative)
	}
	return strings.Join(all, "|")
}

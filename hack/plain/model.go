package main

import (
	_ "embed"
	"math"
	"regexp"
	"strings"
)

// functionWords contains the words that express grammar, and punctuation marks.
//
//go:embed words.txt
var functionWords string

// A token is an index into the vocabulary.
type token byte

const (
	begin   token = iota // padding before a sentence
	end                  // end of a sentence
	content              // a word that is not a function word
	firstFunctionWord
)

var vocabulary = func() map[string]token {
	v := map[string]token{}
	for _, w := range strings.Fields(functionWords) {
		if _, ok := v[w]; !ok {
			v[w] = firstFunctionWord + token(len(v))
		}
	}
	return v
}()

var tokenPattern = regexp.MustCompile(`[A-Za-z']+|[,;:()]`)

// tokens returns the tokens of a sentence, without the begin and end tokens.
func tokens(text string) (all []token) {
	for _, word := range tokenPattern.FindAllString(text, -1) {
		t, ok := vocabulary[strings.ToLower(word)]
		if !ok {
			t = content
		}
		all = append(all, t)
	}
	return all
}

const order = 4

// A gram is a sequence of at most n tokens, where n is the constant order. The last element of
// the array is the number of tokens.
type gram [order + 1]token

func newGram(tokens []token) (g gram) {
	copy(g[:], tokens)
	g[order] = token(len(tokens))
	return g
}

// A model predicts the next token of a sentence. It is an n-gram model with Witten-Bell smoothing (I.
// Witten and T. Bell, The Zero-Frequency Problem, 1991).
type model struct {
	count    map[gram]int // number of occurrences of each gram
	contexts map[gram]int // number of occurrences of the gram before another token
	kinds    map[gram]int // number of different tokens after the gram
}

func train(reference []sentence) *model {
	m := &model{map[gram]int{}, map[gram]int{}, map[gram]int{}}
	for _, s := range reference {
		each(s.tokens, func(window []token) {
			for n := 1; n <= order; n++ {
				part := window[order-n:]
				whole, context := newGram(part), newGram(part[:n-1])
				if m.count[whole] == 0 {
					m.kinds[context]++
				}
				m.count[whole]++
				m.contexts[context]++
			}
		})
	}
	return m
}

// each calls visit for each token and for the end of the sentence. window contains the token and the
// tokens before it.
func each(sentence []token, visit func(window []token)) {
	padded := make([]token, order-1, order+len(sentence)) // the padding consists of begin tokens, because begin is 0
	padded = append(append(padded, sentence...), end)
	for i := order; i <= len(padded); i++ {
		visit(padded[i-order : i])
	}
}

// probability returns the probability that the last token follows the other tokens.
func (m *model) probability(tokens []token) float64 {
	if len(tokens) == 0 {
		return 1 / float64(len(vocabulary)+int(firstFunctionWord))
	}
	lower := m.probability(tokens[1:])
	context := newGram(tokens[:len(tokens)-1])
	n, kinds := m.contexts[context], m.kinds[context]
	if n == 0 {
		return lower
	}
	return (float64(m.count[newGram(tokens)]) + float64(kinds)*lower) / float64(n+kinds)
}

// A score is the average number of bits per token of a sentence.
type score struct {
	sentence sentence
	tokens   int
	bits     float64
}

// measure returns the average number of bits per token, the number of tokens, and the score of each
// sentence.
func (m *model) measure(sentences []sentence) (bits float64, count int, scores []score) {
	for _, s := range sentences {
		sum, n := 0.0, 0
		each(s.tokens, func(window []token) {
			sum -= math.Log2(m.probability(window))
			n++
		})
		bits += sum
		count += n
		scores = append(scores, score{s, len(s.tokens), sum / float64(n)})
	}
	return bits / float64(max(count, 1)), count, scores
}

package terminal

import (
	"fmt"
	"slices"
	"strings"
)

// Diff returns a line diff of two texts. A line begins with "- " if it was removed, "+ " if
// it was added, and two spaces if it is in both.
func Diff(before, after string, colour bool) string {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	paint := func(code, text string) string {
		if !colour {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	var out strings.Builder
	i, j := 0, 0
	for _, match := range append(common(a, b), [2]int{len(a), len(b)}) {
		for ; i < match[0]; i++ {
			fmt.Fprintln(&out, paint("31", "- "+a[i]))
		}
		for ; j < match[1]; j++ {
			fmt.Fprintln(&out, paint("32", "+ "+b[j]))
		}
		if i < len(a) && j < len(b) {
			fmt.Fprintln(&out, "  "+a[i])
			i, j = i+1, j+1
		}
	}
	return out.String()
}

// common returns the longest common subsequence of two lists of lines, as pairs of indices. If the
// rest after the common beginning needs a table of more than 4Mi cells, it returns only that
// beginning.
func common(a, b []string) (pairs [][2]int) {
	start := 0
	for start < min(len(a), len(b)) && a[start] == b[start] {
		pairs = append(pairs, [2]int{start, start})
		start++
	}
	if (len(a)-start)*(len(b)-start) > 4<<20 {
		return pairs
	}
	longest := make([][]int, len(a)+1) // longest[i][j] is the length for a[i:] and b[j:]
	for i := range longest {
		longest[i] = make([]int, len(b)+1)
	}
	for i := range slices.Backward(a[start:]) {
		for j := range slices.Backward(b[start:]) {
			i, j := i+start, j+start
			if longest[i][j] = max(longest[i+1][j], longest[i][j+1]); a[i] == b[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			}
		}
	}
	for i, j := start, start; i < len(a) && j < len(b); {
		switch {
		case a[i] == b[j]:
			pairs = append(pairs, [2]int{i, j})
			i, j = i+1, j+1
		case longest[i+1][j] >= longest[i][j+1]:
			i++
		default:
			j++
		}
	}
	return pairs
}

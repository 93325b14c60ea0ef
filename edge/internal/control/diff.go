package control

import (
	"slices"
	"strings"
)

const (
	around  = 3         // lines that stay as they are, before and behind what changes
	mostLCS = 4_000_000 // cells of the table; beyond, the whole middle counts as changed
)

// diff is what changes from one text to the other, as lines that begin with a
// space, a minus or a plus; "" if nothing does.
func diff(from, to []byte) string {
	a, b := split(from), split(to)
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	lines := keep(nil, a[:head])
	lines = append(lines, middle(a[head:len(a)-tail], b[head:len(b)-tail])...)
	lines = keep(lines, a[len(a)-tail:])
	return near(lines)
}

func split(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func keep(lines, same []string) []string { return mark(lines, " ", same) }

func mark(lines []string, sign string, all []string) []string {
	for _, line := range all {
		lines = append(lines, sign+line)
	}
	return lines
}

// middle compares by the longest common subsequence.
func middle(a, b []string) []string {
	if len(a)*len(b) > mostLCS {
		return mark(mark(nil, "-", a), "+", b)
	}
	common := make([][]int32, len(a)+1) // of what is behind i and j
	for i := range common {
		common[i] = make([]int32, len(b)+1)
	}
	for i, line := range slices.Backward(a) {
		for j := len(b) - 1; j >= 0; j-- {
			if line == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var lines []string
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			lines = append(lines, " "+a[i])
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			lines = append(lines, "-"+a[i])
			i++
		default:
			lines = append(lines, "+"+b[j])
			j++
		}
	}
	return mark(mark(lines, "-", a[i:]), "+", b[j:])
}

// near leaves out what is far from every change.
func near(lines []string) string {
	shown := make([]bool, len(lines))
	for i, line := range lines {
		if line[0] != ' ' {
			for k := max(i-around, 0); k <= min(i+around, len(lines)-1); k++ {
				shown[k] = true
			}
		}
	}
	if !slices.Contains(shown, true) {
		return ""
	}
	var b strings.Builder
	for i, line := range lines {
		switch {
		case shown[i]:
			b.WriteString(line + "\n")
		case i > 0 && shown[i-1]:
			b.WriteString("...\n")
		}
	}
	return b.String()
}

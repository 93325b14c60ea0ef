package router

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func mustNew(t testing.TB, patterns ...Pattern) *Router {
	t.Helper()
	r, faults := New(patterns)
	for _, f := range faults {
		t.Fatal(f.Text)
	}
	return r
}

func paths(texts ...string) []Pattern {
	patterns := make([]Pattern, len(texts))
	for i, text := range texts {
		patterns[i].Path = text
	}
	return patterns
}

// captured is what Captures says, as name=value.
func captured(m *Match) string {
	var all []string
	m.Captures(func(name, value string) { all = append(all, name+"="+value) })
	return strings.Join(all, " ")
}

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		patterns string // parted by spaces; a ~ at the end is EitherSlash
		path     string
		want     string // "pattern captures", or an outcome
	}{
		// One text.
		{"/", "/", "/"},
		{"/", "", "/"},
		{"/users", "/users", "/users"},
		{"/users", "/users/", "404"},
		{"/users", "/user", "404"},
		{"/users", "/usersx", "404"},
		{"/users", "/Users", "404"},
		{"/users", "//users", "404"},
		{"/users/", "/users", "404"},
		{"/users /users/", "/users/", "/users/"},
		{"/users", "/us%65rs", "/users"},
		{"/a/b", "/a%2Fb", "404"},
		{"/a%2Fb", "/a%2fb", "/a%2Fb"},
		{"/a%2Fb", "/a/b", "404"},
		{"/100%25", "/100%25", "/100%25"},
		{"/100%25", "/100%2525", "404"},
		{"/caf%C3%A9", "/café", "/caf%C3%A9"},
		{"/café", "/caf%c3%a9", "/café"},
		{"/a%3Ab", "/a:b", "/a%3Ab"},
		{"/x", "/x%01", "404"},
		{"/x%25", "/x%01", "404"},
		{"/x%2F", "/x%02", "404"},
		{"/a//b", "/a//b", "/a//b"},
		{"/a//b", "/a/b", "404"},

		// A parameter is one segment that is not empty.
		{"/users/:id", "/users/7", "/users/:id id=7"},
		{"/users/:id", "/users/", "404"},
		{"/users/:id", "/users//", "404"},
		{"/users/:id", "/users/7/", "404"},
		{"/users/:id/", "/users/7/", "/users/:id/ id=7"},
		{"/users/:id", "/users/a%2Fb", "/users/:id id=a/b"},
		{"/users/:id", "/users/%2F", "/users/:id id=/"},
		{"/users/:id", "/users/a+b%20c", "/users/:id id=a+b c"},
		{"/:a", "//", "404"},
		{"/:a", "//users", "404"},
		{"/:a/:b", "/x/y", "/:a/:b a=x b=y"},
		{"/:1/:2/:3/:4/:5/:6/:7/:8", "/a/b/c/d/e/f/g/h", "/:1/:2/:3/:4/:5/:6/:7/:8 1=a 2=b 3=c 4=d 5=e 6=f 7=g 8=h"},

		{"/abcdefghijk/:id", "/abcdefghijk/7", "/abcdefghijk/:id id=7"},
		{"/abcdefghijk/:id", "/abcdefghxxx/7", "404"},
		{"/abcdefghijk/:id", "/abcdefgh/7", "404"},

		// A rest may be empty.
		{"/files/*", "/files/", "/files/* *="},
		{"/files/*", "/files/a/b", "/files/* *=a/b"},
		{"/files/*", "/files", "404"},
		{"/files/*f", "/files/a%2fb//c", "/files/*f f=a/b//c"},
		{"/*", "/", "/* *="},
		{"/*", "//users", "/* *=/users"},
		{"/:p/*", "/a/", "/:p/* p=a *="},

		// Precedence, whatever the order of the patterns.
		{"/users/:id /users/me", "/users/me", "/users/me"},
		{"/users/:id /users/me", "/users/m", "/users/:id id=m"},
		{"/users/:id /users/me", "/users/mee", "/users/:id id=mee"},
		{"/static/ /static/*f", "/static/", "/static/"},
		{"/static/ /static/*f", "/static/x", "/static/*f f=x"},
		{"/* /:a /b", "/b", "/b"},
		{"/* /:a /b", "/c", "/:a a=c"},
		{"/* /:a /b", "/b/c", "/* *=b/c"},
		{"/a/* /:p/b", "/a/b", "/a/* *=b"},

		// Back to the next choice.
		{"/a/b /a/:p/c /:p/d", "/a/d", "/:p/d p=a"},
		{"/:a/d /a/:p/c", "/a/d", "/:a/d a=a"},
		{"/:a/d /a/:p/c", "/a/x/c", "/a/:p/c p=x"},
		{"/a/b/c/d /a/:x/c/e /:y/b/* /*", "/a/b/c/e", "/a/:x/c/e x=b"},
		{"/a/b/c/d /a/:x/c/e /:y/b/* /*", "/a/b/c/f", "/:y/b/* y=a *=c/f"},
		{"/a/b/c/d /a/:x/c/e /:y/b/* /*", "/a/x/c/f", "/* *=a/x/c/f"},
		{"/:a/x /:b/y", "/1/y", "/:b/y b=1"},

		// Either slash.
		{"/users~", "/users/", "/users~"},
		{"/users/~", "/users", "/users/~"},
		{"/users/:id~", "/users/7/", "/users/:id~ id=7"},
		{"/users/:id~", "/users/", "404"},
		{"/users/:id/~", "/users/7", "/users/:id/~ id=7"},
		{"/files/*~", "/files", "/files/*~"},
		{"/files/*~", "/files/", "/files/*~ *="},
		{"/:a/*~", "/x", "/:a/*~ a=x"},
		{"/~", "/", "/~"},
		{"/*~", "/", "/*~ *="},

		// Paths that servers read in different ways.
		{"/*", "/a/../b", "400"},
		{"/*", "/a/..", "400"},
		{"/*", "/a/.", "400"},
		{"/*", "/./a", "400"},
		{"/*", "/a/%2e%2e/b", "400"},
		{"/*", "/a/.%2E/b", "400"},
		{"/*", "/a/..%2fb", "400"},
		{"/*", "/a%2f..%2fb", "400"},
		{"/*", "/a%2f..", "400"},
		{"/*", "/a/..;x/b", "400"},
		{"/*", "/a/.%2e%3bx", "400"},
		{"/*", `/a\b`, "400"},
		{"/*", "/a%5Cb", "400"},
		{"/*", "/a%00", "400"},
		{"/*", "/a\x01", "400"},
		{"/*", "/a\x7f", "400"},
		{"/*", "/a%20\x7f", "400"},
		{"/*", "/a%20\n", "400"},
		{"/*", "/a%", "400"},
		{"/*", "/a%4", "400"},
		{"/*", "/a%zz", "400"},
		{"/*", "users", "400"},
		{"/*", "*", "400"},
		{"/*", "/a/...", "/* *=a/..."},
		{"/*", "/a/..b", "/* *=a/..b"},
		{"/*", "/a/b..", "/* *=a/b.."},
		{"/*", "/.well-known", "/* *=.well-known"},
		{"/*", "/a%2e%2e", "/* *=a.."},
		{"/a%2Fb", "/a\x00b", "400"},
		{"/a%25b", "/a\x01b", "400"},
	} {
		t.Run(test.patterns+" "+test.path, func(t *testing.T) {
			texts := strings.Fields(test.patterns)
			for range 3 {
				rand.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
				var patterns []Pattern
				for _, text := range texts {
					path, either := strings.CutSuffix(text, "~")
					patterns = append(patterns, Pattern{Path: path, EitherSlash: either})
				}
				var m Match
				got := map[Outcome]string{NotFound: "404", BadPath: "400"}[mustNew(t, patterns...).Match("GET", test.path, &m)]
				if got == "" {
					got = strings.TrimSpace(texts[m.Pattern] + " " + captured(&m))
				}
				if got != test.want {
					t.Fatalf("%s goes to %q, want %q", test.path, got, test.want)
				}
			}
		})
	}
}

func TestMethods(t *testing.T) {
	patterns := []Pattern{
		{Path: "/users", Methods: []string{"GET"}},
		{Path: "/users", Methods: []string{"POST", "PUT"}},
		{Path: "/users/me", Methods: []string{"GET"}},
		{Path: "/users/:id", Methods: []string{"DELETE", "PATCH"}},
		{Path: "/all", Methods: nil},
		{Path: "/all", Methods: []string{"GET"}},
		{Path: "/head", Methods: []string{"HEAD"}},
		{Path: "/head", Methods: []string{"GET"}},
		{Path: "/files/*", Methods: []string{"PROPFIND"}},
	}
	r := mustNew(t, patterns...)
	for _, test := range []struct {
		method, path string
		want         any // the pattern, or Allow
	}{
		{"GET", "/users", 0},
		{"HEAD", "/users", 0},
		{"PUT", "/users", 1},
		{"DELETE", "/users", "GET, HEAD, POST, PUT"},
		{"get", "/users", "GET, HEAD, POST, PUT"},
		{"GET", "/users/me", 2},
		{"DELETE", "/users/me", 3}, // what does not take the method is no match
		{"POST", "/users/me", "DELETE, GET, HEAD, PATCH"},
		{"GET", "/users/7", "DELETE, PATCH"},
		{"GET", "/all", 5},
		{"HEAD", "/all", 5},
		{"BREW", "/all", 4},
		{"HEAD", "/head", 6},
		{"GET", "/head", 7},
		{"PROPFIND", "/files/x", 8},
		{"HEAD", "/files/x", "PROPFIND"},
		{"GET", "/f%69les/x", "PROPFIND"},
	} {
		var m Match
		switch outcome := r.Match(test.method, test.path, &m); want := test.want.(type) {
		case int:
			if outcome != Found || m.Pattern != want || m.Allow != "" {
				t.Errorf("%s %s: outcome %d, pattern %d, Allow %q; want pattern %d", test.method, test.path, outcome, m.Pattern, m.Allow, want)
			}
		case string:
			if outcome != MethodNotAllowed || m.Allow != want || m.Pattern != -1 {
				t.Errorf("%s %s: outcome %d, pattern %d, Allow %q; want Allow %q", test.method, test.path, outcome, m.Pattern, m.Allow, want)
			}
		}
	}
}

func TestFaultsAreReportedTogetherAndNameBoth(t *testing.T) {
	patterns := []Pattern{
		0:  {Path: "/users/:id"},
		1:  {Path: "/users/:name"},
		2:  {Path: "/users/:id", Methods: []string{"GET"}}, // fine: for GET before 0
		3:  {Path: "/users/:id", Methods: []string{"GET", "POST"}},
		4:  {Path: "/a/:x:y"},
		5:  {Path: "/a/x:y"},
		6:  {Path: "/a/:"},
		7:  {Path: "/files/*rest/x"},
		8:  {Path: "/files/a*"},
		9:  {Path: ""},
		10: {Path: "users"},
		11: {Path: "/:a/:b/:a"},
		12: {Path: "/:1/:2/:3/:4/:5/:6/:7/:8/*9"},
		13: {Path: "/a/../b"},
		14: {Path: "/a?b=1"},
		15: {Path: "/users/{id}"},
		16: {Path: "/m", Methods: []string{"GET", "GET", "a b"}},
		17: {Path: "/slash", EitherSlash: true},
		18: {Path: "/slash/"},
		19: {Path: "/a%0Ab"},
		20: {Path: "/static/"},
		21: {Path: "/static/*f"}, // fine
		22: {Path: "/:a/d"},
		23: {Path: "/a/:p/c"}, // fine
		24: {Path: "/us%65rs/:key"},
		25: {Path: "/x/:a.b"},
		26: {Path: "/users/:id"},
	}
	want := []string{
		"1/0 /users/:name takes the paths that /users/:id takes; give their parameters the same names",
		"3/2 /users/:id takes paths that /users/:id takes, with the same method; remove one of them",
		"4/-1 /a/:x:y has two parameters in the segment :x:y; a parameter is a whole segment",
		"5/-1 /a/x:y a parameter is a whole segment, unlike that in x:y; a literal : is %3A, a literal * is %2A",
		"6/-1 /a/: has a parameter without a name; write one behind the colon",
		"7/-1 /files/*rest/x *rest must be the last segment",
		"8/-1 /files/a* a parameter is a whole segment, unlike that in a*; a literal : is %3A, a literal * is %2A",
		"9/-1  is empty; the shortest is /",
		"10/-1 users must begin with /",
		"11/-1 /:a/:b/:a has two parameters a",
		"12/-1 /:1/:2/:3/:4/:5/:6/:7/:8/*9 has 9 parameters; the most is 8",
		"13/-1 /a/../b no request can have it: the path has a segment . or .., plain or encoded",
		"14/-1 /a?b=1 must not have a query or a fragment; requests are routed by their path alone",
		"15/-1 /users/{id} a parameter is written :name, not {id}; a literal { is %7B",
		"16/-1 /m has the method GET twice",
		`16/-1 /m "a b" is no method`,
		"18/17 /slash/ takes paths that /slash takes, with the same method; remove one of them",
		"19/-1 /a%0Ab has an encoded control byte in a%0Ab",
		"24/0 /us%65rs/:key takes the paths that /users/:id takes; give their parameters the same names",
		"25/-1 /x/:a.b the name of :a.b may have letters, digits, _ and -",
		"26/0 /users/:id takes paths that /users/:id takes, with the same method; remove one of them",
	}
	r, faults := New(patterns)
	if r != nil {
		t.Error("there is a router in spite of faults")
	}
	var got []string
	for _, f := range faults {
		got = append(got, fmt.Sprintf("%d/%d %s", f.Pattern, f.Other, f.Text))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestOrderIsThatOfPrecedence(t *testing.T) {
	patterns := append(paths("/*", "/:a", "/b", "/b/:c", "/b/*", "/b/c~"), Pattern{Path: "/:a", Methods: []string{"GET"}}, Pattern{Path: "/z", EitherSlash: true})
	var got []string
	for _, i := range mustNew(t, patterns...).Order() {
		got = append(got, patterns[i].Path+strings.Join(patterns[i].Methods, ""))
	}
	if want := []string{"/b", "/b/c~", "/b/:c", "/b/*", "/z", "/:aGET", "/:a", "/*"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAMatchIsReused(t *testing.T) {
	r := mustNew(t, append(paths("/a/:x/*rest", "/b"), Pattern{Path: "/c", Methods: []string{"GET"}})...)
	var m Match
	r.Match("POST", "/c", &m)
	r.Match("GET", "/a/..", &m)
	if m.Allow != "" || m.Why == "" || m.Pattern != -1 {
		t.Errorf("after a bad path: %+v", m)
	}
	r.Match("GET", "/a/1/2", &m)
	if m.Why != "" || captured(&m) != "x=1 rest=2" {
		t.Errorf("after a good path: %+v", m)
	}
	r.Match("GET", "/b", &m)
	if captured(&m) != "" {
		t.Errorf("a pattern without parameters has captured %s", captured(&m))
	}
	if r.Match("GET", "/nowhere", &m) != NotFound || captured(&m) != "" || m.Pattern != -1 {
		t.Errorf("after no match: %+v", m)
	}
}

func TestTextsAreFoundByHash(t *testing.T) {
	leaves := make(map[string]*leaf)
	for i := range 2000 {
		for _, format := range []string{"/%d", "/service-%d", "/api/v1/%d/with/the/same/ends"} {
			leaves[fmt.Sprintf(format, i)] = new(leaf)
		}
	}
	table := newTextTable(leaves)
	for text, l := range leaves {
		if !table.may(text) || table.find(text) != l {
			t.Fatalf("%s is not found", text)
		}
		if other := strings.Replace(text, "/", "//", 1); table.find(other) != nil || table.find(text[:len(text)-1]) != leaves[text[:len(text)-1]] {
			t.Fatalf("%s is found", other)
		}
	}
}

// What is not compared byte by byte differs in every byte all the same.
func TestATextWithOneOtherByteIsNotFound(t *testing.T) {
	const longest = "/a-text-of-more-than-twice-the-sixteen-bytes"
	leaves := make(map[string]*leaf)
	for n := range len(longest) {
		leaves[longest[:n+1]] = new(leaf)
	}
	table := newTextTable(leaves)
	for text, l := range leaves {
		if table.find(text) != l {
			t.Fatalf("%s is not found", text)
		}
		for i := range text {
			for _, c := range []byte{0, 'A', text[i] + 1} {
				other := text[:i] + string([]byte{c}) + text[i+1:]
				if table.find(other) != leaves[other] {
					t.Errorf("%q is found", other)
				}
			}
		}
	}
}

func TestNoPatternsMatchNothing(t *testing.T) {
	var m Match
	if got := mustNew(t).Match("GET", "/", &m); got != NotFound {
		t.Errorf("outcome %d", got)
	}
}

// Each choice of text or parameter doubles the ways to read this path.
func TestLongPathsCostNoMoreThanTheTree(t *testing.T) {
	var patterns []Pattern
	for i := range 256 {
		var b strings.Builder
		for bit := range 8 {
			if i>>bit&1 == 1 {
				fmt.Fprintf(&b, "/:p%d", bit)
			} else {
				b.WriteString("/a")
			}
		}
		patterns = append(patterns, Pattern{Path: b.String() + "/end"})
	}
	r := mustNew(t, patterns...)
	path := strings.Repeat("/a", 4<<10)
	var m Match
	start := time.Now()
	for range 10 {
		if got := r.Match("GET", path, &m); got != NotFound {
			t.Fatalf("outcome %d", got)
		}
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("10 paths of 8 KiB took %v", took)
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	r := mustNew(t, paths("/users", "/users/:id", "/users/:id/posts/:post", "/files/*rest", "/a/:p/c", "/:p/d")...)
	var m Match
	for _, path := range []string{"/users", "/users/7", "/us%65rs/a%2Fb", "/users/7/posts/8", "/files/a/b", "/a/d", "/nowhere/at/all", "/a/../b"} {
		if n := testing.AllocsPerRun(100, func() { r.Match("GET", path, &m) }); n != 0 {
			t.Errorf("%s allocates %v times", path, n)
		}
	}
}

// segments that nest, clash, hide and deceive.
var (
	patternSegments = []string{"a", "ab", "abc", "b", "", "c.d", "%61", "%2F", "%25", "é", "%C3%A9", ":p", ":p", ":q", "*", "*r"}
	pathSegments    = []string{"a", "ab", "abc", "b", "", "", "c.d", "%61", "%61b", "a%62", "%2F", "%2f", "a%2Fb", "%25", "%2561", "é", "%c3%A9", "x", ".", "..", "...", "%2e", ".%2E", "..;v", "%2e.%2fa", `\`, "%5c", "%00", "%01", "\x01", "%", "%a", "%zz", "a.", ".a"}
	someMethods     = []string{"GET", "HEAD", "POST", "BREW"}
)

func randomPattern(rnd *rand.Rand) Pattern {
	var b strings.Builder
	for range 1 + rnd.IntN(4) {
		s := patternSegments[rnd.IntN(len(patternSegments))]
		b.WriteString("/" + s)
		if s != "" && s[0] == '*' {
			break
		}
	}
	p := Pattern{Path: b.String(), EitherSlash: rnd.IntN(4) == 0}
	for _, m := range someMethods {
		if rnd.IntN(6) == 0 {
			p.Methods = append(p.Methods, m)
		}
	}
	return p
}

func randomPath(rnd *rand.Rand) string {
	n := len(pathSegments)
	if rnd.IntN(3) > 0 {
		n = 15 // mostly good ones
	}
	var b strings.Builder
	for range 1 + rnd.IntN(4) {
		b.WriteString("/" + pathSegments[rnd.IntN(n)])
	}
	return b.String()
}

// sound is the patterns without those that New refuses.
func sound(t testing.TB, patterns []Pattern) ([]Pattern, *Router) {
	t.Helper()
	for {
		r, faults := New(patterns)
		if len(faults) == 0 {
			return patterns, r
		}
		refused := make(map[int]bool)
		for _, f := range faults {
			refused[f.Pattern] = true
		}
		var rest []Pattern
		for i, p := range patterns {
			if !refused[i] {
				rest = append(rest, p)
			}
		}
		if len(rest) == len(patterns) {
			t.Fatalf("faults of no pattern: %v", faults)
		}
		patterns = rest
	}
}

// agrees compares the router with the naive one.
func agrees(t testing.TB, patterns []Pattern, r *Router, m *Match, method, path string) {
	t.Helper()
	outcome, pattern, captures := naive(patterns, method, path)
	if got := r.Match(method, path, m); got != outcome || m.Pattern != pattern {
		t.Fatalf("%s %q of %+v: outcome %d, pattern %d; want %d, %d", method, path, patterns, got, m.Pattern, outcome, pattern)
	}
	if (outcome == BadPath) != (m.Why != "") || (outcome == MethodNotAllowed) != (m.Allow != "") {
		t.Fatalf("%s %q: outcome %d, Why %q, Allow %q", method, path, outcome, m.Why, m.Allow)
	}
	var got [][2]string
	m.Captures(func(name, value string) { got = append(got, [2]string{name, value}) })
	if !slices.Equal(got, captures) {
		t.Fatalf("%s %q of %+v: captures %q, want %q", method, path, patterns[pattern], got, captures)
	}
	if m.Allow == "" {
		return
	}
	for _, other := range append(strings.Split(m.Allow, ", "), someMethods...) {
		want := slices.Contains(strings.Split(m.Allow, ", "), other)
		if outcome, _, _ := naive(patterns, other, path); (outcome == Found) != want {
			t.Fatalf("%s %q of %+v: Allow is %q, and %s has outcome %d", method, path, patterns, m.Allow, other, outcome)
		}
	}
}

func TestRouterAgreesWithTheNaiveOne(t *testing.T) {
	sets := 3000
	if testing.Short() {
		sets = 300
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var m Match
	outcomes := make(map[Outcome]int)
	for range sets {
		patterns := make([]Pattern, 1+rnd.IntN(25))
		for i := range patterns {
			patterns[i] = randomPattern(rnd)
		}
		patterns, r := sound(t, patterns)
		for range 60 {
			method, path := someMethods[rnd.IntN(len(someMethods))], randomPath(rnd)
			agrees(t, patterns, r, &m, method, path)
			outcomes[r.Match(method, path, &m)]++
		}
		// In another order the answers are the same.
		shuffled := slices.Clone(patterns)
		rnd.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		again := mustNew(t, shuffled...)
		for range 10 {
			agrees(t, shuffled, again, &m, "GET", randomPath(rnd))
		}
	}
	for outcome := Found; outcome <= BadPath; outcome++ {
		if outcomes[outcome] < sets {
			t.Errorf("outcome %d was tried %d times only", outcome, outcomes[outcome])
		}
	}
}

func FuzzRouter(f *testing.F) {
	f.Add("/users /users/:id /files/*", "GET", "/users/7")
	f.Add("/a/b /a/:p/c /:p/d", "HEAD", "/a/d")
	f.Add("/a%2Fb~ /*r GET", "POST", "/a%2fb/")
	f.Add("/:a/:b/* /é/%25", "BREW", "/%c3%a9/%25")
	f.Add("/x", "GET", "/..%2f%00\\")
	f.Fuzz(func(t *testing.T, texts, method, path string) {
		var patterns []Pattern
		for i, text := range strings.Split(texts, " ") {
			p := Pattern{}
			p.Path, p.EitherSlash = strings.CutSuffix(text, "~")
			if i%3 == 2 {
				p.Methods = []string{"GET", "POST"}
			}
			patterns = append(patterns, p)
		}
		patterns, r := sound(t, patterns)
		var m Match
		agrees(t, patterns, r, &m, method, path)
		for _, p := range patterns {
			agrees(t, patterns, r, &m, method, p.Path)
		}
	})
}

package main

import (
	"bufio"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHistogramBuckets(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{0, 1, 63, 64, 127, 128, 129, 1000, time.Microsecond, time.Millisecond, time.Second, time.Minute} {
		i := bucketOf(d)
		if upperOf(i) < d || i > 0 && upperOf(i-1) >= d {
			t.Errorf("%d ns are in bucket %d, from %d to %d", d, i, upperOf(i-1)+1, upperOf(i))
		}
		if width := upperOf(i) - upperOf(max(i-1, 0)); float64(width) > float64(d)/64+1 {
			t.Errorf("the bucket of %d ns is %d wide", d, width)
		}
	}
	if got := bucketOf(time.Hour); got != buckets-1 {
		t.Errorf("an hour is in bucket %d, want the last", got)
	}
}

func TestHistogramQuantiles(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	var whole, a, b histogram
	var values []time.Duration
	for i := range 10_000 {
		d := time.Duration(rnd.ExpFloat64() * 1e6)
		values = append(values, d)
		whole.add(d)
		if i%3 == 0 {
			a.add(d)
		} else {
			b.add(d)
		}
	}
	a.merge(&b)
	if a != whole {
		t.Error("two halves merged are not the whole")
	}
	slices.Sort(values)
	for _, q := range []float64{0, 0.5, 0.99, 0.999, 1} {
		want := values[int(q*float64(len(values)-1))]
		if got := whole.quantile(q); got < want || float64(got) > float64(want)*(1+1.0/64)+1 {
			t.Errorf("quantile %v: %s, want %s", q, got, want)
		}
	}
	if got := new(histogram).quantile(0.5); got != 0 {
		t.Errorf("of nothing: %s", got)
	}
}

func TestStat(t *testing.T) {
	t.Parallel()
	if got, want := statOf([]float64{5, 1, 3}), (stat{3, 1, 5}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	// A slow round is slow for both.
	if got, want := ratioOf([]float64{10, 2, 20}, []float64{5, 1, 10}), (stat{2, 2, 2}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestBars(t *testing.T) {
	t.Parallel()
	got := func(v float64) stat { return stat{v, v, v} }
	for _, c := range []struct {
		bar  bar
		want string
	}{
		{atLeast("", got(0.85), 0.85), "PASS"},
		{atLeast("", got(0.5), 1), "SHORT by 50 %"},
		{atMost("", got(0.6), 0.6), "PASS"},
		{atMost("", got(0.9), 0.6), "SHORT by 50 %"},
		{atMost("", got(20), 2), "SHORT by a factor of 10.0"},
		{noAllocations("", got(0.001)), "PASS"},
		{noAllocations("", got(1)), "SHORT by a factor of 100.0"},
	} {
		if v := c.bar.verdict(); v != c.want {
			t.Errorf("%+v: %q, want %q", c.bar, v, c.want)
		}
	}
}

func TestHeadsAreReadAsFarAsTheyMatter(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]head{
		"GET /get HTTP/1.1\r\nHost: x\r\n\r\n":                                       {target: "/get"},
		"POST /post HTTP/1.1\r\ncontent-length:  7 \r\nConnection: close\r\n\r\n":    {target: "/post", length: 7, close: true},
		"HTTP/1.1 200 OK\r\nContent-Length: 64\r\nConnection: keep-alive\r\n\r\n...": {status: 200, length: 64},
		"HTTP/1.0 502 Bad Gateway\r\n\r\n":                                           {status: 502, length: -1},
	} {
		if got, err := readHead(bufio.NewReader(strings.NewReader(text))); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "HTTP/1.1 x\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET / HTTP/1.1\r\n"} {
		if got, err := readHead(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// A benchmark of a proxy that changes what it passes on is none.
func TestEveryByteOfAnAnswerCounts(t *testing.T) {
	t.Parallel()
	changed := slices.Clone(large)
	changed[40_000]++
	for name, c := range map[string]struct {
		answer []byte
		ok     bool
	}{
		"right":     {response(200, large), true},
		"changed":   {response(200, changed), false},
		"too short": {response(200, large[:len(large)-1]), false},
		"too long":  {response(200, append(slices.Clone(large), 'x')), false},
		"refused":   {response(503, large), false},
	} {
		addr := answering(t, c.answer)
		r := get(pathBody, large)
		w := newWire(addr)
		if ok, err := w.exchange(t.Context(), &r); ok != c.ok || (err == nil) != c.ok {
			t.Errorf("%s: %t, %v", name, ok, err)
		}
		w.hangUp()
	}
}

// answering listens where each connection gets the answer.
func answering(t *testing.T, answer []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = readHead(bufio.NewReader(c))
			_, _ = c.Write(answer)
			t.Cleanup(func() { c.Close() })
		}
	}()
	return l.Addr().String()
}

func TestTheBackendLooksAtWhatItGets(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go (&backend{work: time.Microsecond, desks: make(chan struct{}, 1)}).acceptAll(l)
	changed := slices.Clone(upload)
	changed[9000]++
	w := newWire(l.Addr().String())
	defer w.hangUp()
	for _, c := range []struct {
		request request
		ok      bool
	}{
		{get(pathGet, small), true},
		{get(pathBody, large), true},
		{get(pathWork+"rr", small), true},
		{post(upload, small), true},
		{post(upload[1:], small), false},
		{post(changed, small), false},
		{get(pathPost, small), false},
	} {
		c.request.tolerant = true
		if ok, err := w.exchange(t.Context(), &c.request); ok != c.ok || err != nil {
			t.Errorf("%.40q: %t, %v", c.request.bytes, ok, err)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	if all, err := choose(""); err != nil || len(all) != len(experiments) {
		t.Errorf("%d, %v", len(all), err)
	}
	if two, err := choose("slow,dead"); err != nil || len(two) != 2 || two[0].name != "slow" {
		t.Errorf("%v, %v", two, err)
	}
	if _, err := choose("slow,nothing"); err == nil {
		t.Error("an experiment that is not there was chosen")
	}
}

package main

import (
	"fmt"
	"net/http"
	"syscall"
	"time"
)

// workers is how many requests are under way at once.
const workers = 8

func even(s *stage) (string, string, bool) {
	t := newTally()
	for range 300 {
		t.add(s.get("http://" + s.traffic + "/even"))
	}
	a, b, c := t.backends["a"], t.backends["b"], t.backends["c"]
	return fmt.Sprintf("%d requests: %d to a, %d to b, %d to c", t.all, a, b, c), "a third each",
		a == 100 && b == 100 && c == 100
}

func flapping(s *stage) (string, string, bool) {
	const periods = 3
	t := s.during(workers, func() {
		for range periods {
			s.fault(1, "mode=503")
			s.sleep(time.Second)
			s.fault(1, "mode=none")
			s.sleep(time.Second)
		}
	})
	// In each bad second: the failures that open the breaker, what was under way
	// beside them, and a probe for each time that it may try again.
	most := periods * (3 + workers + 3)
	return fmt.Sprintf("%d requests: %d were answered 503 by b, %d otherwise not 200", t.all, t.status[http.StatusServiceUnavailable], t.failures()-t.status[http.StatusServiceUnavailable]),
		fmt.Sprintf("at most %d fail, by breaker and checks", most),
		t.failures() <= most && t.failures() > 0 && t.failures() == t.status[http.StatusServiceUnavailable]
}

func slow(s *stage) (string, string, bool) {
	s.fault(2, "mode=slow&d=100ms") // checks pass: they may take 150 ms
	t := s.during(workers, func() { s.sleep(3 * time.Second) })
	s.fault(2, "mode=none")
	return fmt.Sprintf("%d requests: %d to c, which takes 100 ms; %d failed", t.all, t.backends["c"], t.failures()),
		"less than a tenth to the slow one, by least connections", t.failures() == 0 && t.backends["c"] > 0 && t.backends["c"] < t.all/10
}

func killed(s *stage) (string, string, bool) {
	addr := s.backends[0].addr
	var after *tally
	t := s.during(workers, func() {
		s.sleep(300 * time.Millisecond)
		s.backends[0].kill()
		s.sleep(time.Second) // two checks and what they take
		after = s.during(1, func() { s.sleep(500 * time.Millisecond) })
		s.revive(0, addr)
		s.sleep(1500 * time.Millisecond)
	})
	if s.err != nil {
		return "", "", false
	}
	again := s.during(workers, func() { s.sleep(500 * time.Millisecond) })
	most := 3 + 2*workers + 3
	return fmt.Sprintf("%d requests: %d failed; %d of %d once checks had noticed; a served %d when it was back", t.all, t.failures(), after.failures(), after.all, again.backends["a"]),
		fmt.Sprintf("at most %d fail, none later, and it gets its share again", most),
		t.failures() <= most && after.failures() == 0 && again.backends["a"] > 0 && again.failures() == 0
}

func elsewhere(s *stage) (string, string, bool) {
	addr := s.backends[0].addr
	t := s.duringAt("/any", workers, func() {
		s.sleep(300 * time.Millisecond)
		s.backends[0].kill()
		s.sleep(time.Second)
		s.revive(0, addr)
		s.sleep(500 * time.Millisecond)
	})
	return fmt.Sprintf("%d requests: %d failed", t.all, t.failures()), "none fails, before any check has noticed", t.failures() == 0 && t.all > 0
}

func flood(s *stage) (string, string, bool) {
	begin := time.Now()
	t := newTally()
	for range 1000 {
		t.add(s.get("http://" + s.traffic + "/limited"))
	}
	admitted, refused := t.status[http.StatusOK], t.status[http.StatusTooManyRequests]
	most := 50 + int(10*time.Since(begin).Seconds()) + 1
	return fmt.Sprintf("%d requests: %d admitted, %d answered 429, each with Retry-After", t.all, admitted, refused),
		fmt.Sprintf("50 at once and 10 a second: 50 to %d", most),
		admitted >= 50 && admitted <= most && admitted+refused == t.all && t.retry == refused
}

func reload(s *stage) (string, string, bool) {
	changes := 0
	t := s.during(workers, func() {
		for range 10 {
			changes++
			if err := s.writeConfig(fmt.Sprintf("  - {path: /new%d, backend: web}", changes)); err != nil {
				s.failed(err)
			}
			s.signal(syscall.SIGHUP)
			s.sleep(100 * time.Millisecond)
		}
	})
	fresh := s.get("http://" + s.traffic + fmt.Sprintf("/new%d", changes))
	return fmt.Sprintf("%d requests in %d changes: %d failed; the new route answers %d", t.all, changes, t.failures(), fresh.status),
		"none fails, and the new route is there", t.failures() == 0 && fresh.status == http.StatusOK
}

func stopped(s *stage) (string, string, bool) {
	s.fault(0, "mode=slow&d=300ms")
	s.fault(1, "mode=slow&d=300ms")
	s.fault(2, "mode=slow&d=300ms")
	results := make(chan answer)
	for range workers {
		go func() { results <- s.get("http://" + s.traffic + "/web") }()
	}
	s.sleep(100 * time.Millisecond) // all are under way
	s.signal(syscall.SIGTERM)
	t := newTally()
	for range workers {
		t.add(<-results)
	}
	<-s.edge.done
	code := s.edge.cmd.ProcessState.ExitCode()
	return fmt.Sprintf("%d were under way: %d were answered; exit code %d", workers, t.status[http.StatusOK], code),
		"all are answered, exit code 0", t.failures() == 0 && code == 0
}

package measure

import "fmt"

// Bar is a figure that the project has set itself.
type Bar struct {
	What  string
	Got   Stat
	Unit  string // "x" for a ratio
	Bound float64
	Least bool    // Got must be at least Bound, else at most
	Aim   float64 // a further goal; 0: none
	Gate  bool    // the others are printed and explained
}

// AtLeast is a bar for a ratio that is to be bound or more.
func AtLeast(what string, got Stat, bound float64) Bar {
	return Bar{What: what, Got: got, Unit: "x", Bound: bound, Least: true}
}

// AtMost is a bar for a ratio that is to be bound or less.
func AtMost(what string, got Stat, bound float64) Bar {
	return Bar{What: what, Got: got, Unit: "x", Bound: bound}
}

// NoAllocations tolerates what the runtime allocates by itself now and then.
func NoAllocations(what string, got Stat) Bar {
	return Bar{What: what + ", allocations", Got: got, Bound: 0.01}
}

// AsGate is b as one that counts among the missed.
func (b Bar) AsGate() Bar {
	b.Gate = true
	return b
}

// AimingAt is b with a further goal.
func (b Bar) AimingAt(aim float64) Bar {
	b.Aim = aim
	return b
}

// In is b in another unit.
func (b Bar) In(unit string) Bar {
	b.Unit = unit
	return b
}

func (b Bar) passed() bool { return b.reaches(b.Bound) }

func (b Bar) reaches(bound float64) bool {
	if b.Least {
		return b.Got.Median >= bound
	}
	return b.Got.Median <= bound
}

func (b Bar) verdict() string {
	switch {
	case b.passed() && b.Aim > 0 && b.reaches(b.Aim):
		return "PASS, and the aim of " + Number(b.Aim) + b.Unit
	case b.passed() && b.Aim > 0:
		return "PASS, short of the aim of " + Number(b.Aim) + b.Unit
	case b.passed():
		return "PASS"
	case b.Least:
		return fmt.Sprintf("SHORT by %.2g %%", 100*(1-b.Got.Median/b.Bound))
	case b.Got.Median > 2*b.Bound:
		return fmt.Sprintf("SHORT by a factor of %.1f", b.Got.Median/b.Bound)
	default:
		return fmt.Sprintf("SHORT by %.2g %%", 100*(b.Got.Median/b.Bound-1))
	}
}

func (b Bar) row() []string {
	sign, kind := "at most", "bar"
	if b.Least {
		sign = "at least"
	}
	if b.Gate {
		kind = "gate"
	}
	return []string{b.What, kind, sign + " " + Number(b.Bound) + b.Unit, b.Got.String(), b.verdict()}
}

var barColumns = []string{"bar", "kind", "wanted", "measured", "verdict"}

package examples

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The rules of the operator's page and those to download are the same; what
// holds for that page's, see TestRulesAreWellFormed, holds for both.
func TestRulesToDownload(t *testing.T) {
	rules := read(t, "docs/dashboards/alerts.yml")
	if !slices.ContainsFunc(blocks(t, "yaml"), func(b block) bool { return b.text == rules }) {
		t.Error("docs/dashboards/alerts.yml is not the block of docs/operations.md")
	}
	newMetricNames(t).check(t, "docs/dashboards/alerts.yml", rules)
}

// dashboard is what of Grafana's model the test looks at.
type dashboard struct {
	Title, UID string
	Templating struct {
		List []struct{ Name, Definition string }
	}
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr, LegendFormat string }
	}
}

var (
	dashboardVariable = regexp.MustCompile(`\$\{?([A-Za-z_]+)`)
	legendLabel       = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// Every panel of the dashboard asks for metrics, labels and values that there
// are, names by labels that its expression keeps, and stands on no other.
func TestDashboard(t *testing.T) {
	const file = "docs/dashboards/grafana.json"
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, file)), &d); err != nil {
		t.Fatal(err)
	}
	names := newMetricNames(t)
	variables := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		names.check(t, file, v.Definition)
	}
	if len(d.Panels) < 8 {
		t.Errorf("%d panels", len(d.Panels))
	}
	shown := ""
	places := map[[2]int]bool{}
	for i, p := range d.Panels {
		if p.ID != i+1 || p.Title == "" || len(p.Targets) == 0 || p.GridPos.W < 1 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("an incomplete panel: %+v", p)
		}
		if at := [2]int{p.GridPos.X, p.GridPos.Y}; places[at] {
			t.Errorf("%s stands on another panel", p.Title)
		} else {
			places[at] = true
		}
		for _, target := range p.Targets {
			shown += target.Expr
			names.check(t, p.Title, target.Expr)
			for _, pair := range []string{"()", "{}", "[]"} {
				if strings.Count(target.Expr, pair[:1]) != strings.Count(target.Expr, pair[1:]) {
					t.Errorf("%s: %s do not match in %s", p.Title, pair, target.Expr)
				}
			}
			for _, v := range dashboardVariable.FindAllStringSubmatch(target.Expr, -1) {
				if !slices.Contains(variables, v[1]) {
					t.Errorf("%s: there is no variable %s", p.Title, v[1])
				}
			}
			for _, l := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !strings.Contains(target.Expr, "by ("+l[1]+")") {
					t.Errorf("%s: the expression does not keep %s", p.Title, l[1])
				}
			}
		}
	}
	for name := range metrics(t) { // the edge has a page of its own
		if !strings.Contains(shown, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}

package operator

import (
	"bytes"
	_ "embed"
	"html/template"
	"maps"
	"net/http"
	"time"
)

// head is the begin of every page, with how it looks.
//
//go:embed head.html
var head string

// Page shows people, in a browser, how things stand.
type Page struct{ template *template.Template }

// NewPage is the page that a template says, which begins with {{template "head" TITLE}}.
// Besides what funcs has it may say {{ago TIME}}. It panics where the template is none.
func NewPage(text string, funcs template.FuncMap) *Page {
	all := template.FuncMap{"ago": func(t time.Time) string { return time.Since(t).Round(time.Second).String() }}
	maps.Copy(all, funcs)
	t := template.Must(template.New("page").Funcs(all).Parse(text))
	template.Must(t.New("head").Parse(head))
	return &Page{t}
}

// Answer sends the page of a view.
func (p *Page) Answer(w http.ResponseWriter, view any) {
	var b bytes.Buffer
	if err := p.template.Execute(&b, view); err != nil {
		http.Error(w, "the page cannot be written: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes()) // the client is gone
}

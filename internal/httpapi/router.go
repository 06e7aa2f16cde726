package httpapi

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// router finds the handler of a request. It takes each segment of the path unchanged, which
// http.ServeMux does not: an id may be "/" or "..", percent-encoded.
type router struct{ paths []routerPath }

type routerPath struct {
	segments []string // "{name}" stands for any segment
	methods  map[string]http.Handler
}

// add makes a handler answer the requests with a method and a path.
func (r *router) add(method, path string, h http.Handler) {
	segments := strings.Split(path, "/")
	i := slices.IndexFunc(r.paths, func(p routerPath) bool { return slices.Equal(p.segments, segments) })
	if i < 0 {
		i = len(r.paths)
		r.paths = append(r.paths, routerPath{segments, map[string]http.Handler{}})
	}
	r.paths[i].methods[method] = h
}

// ServeHTTP implements [http.Handler].
func (r *router) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	segments := strings.Split(hr.URL.EscapedPath(), "/")
	for _, p := range r.paths {
		if !p.match(segments, hr) {
			continue
		}
		method := hr.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		if h := p.methods[method]; h != nil {
			h.ServeHTTP(w, hr)
			return
		}
		allowed := p.allowed()
		w.Header().Set("Allow", allowed)
		newProblem(http.StatusMethodNotAllowed, "wrong_method", "this path takes "+allowed).write(w)
		return
	}
	newProblem(http.StatusNotFound, "no_such_path", "there is nothing here; /openapi.json lists what there is").write(w)
}

// match reports whether a path has this form. If so, it sets the ids of the path as values of
// the request.
func (p routerPath) match(segments []string, r *http.Request) bool {
	if len(segments) != len(p.segments) {
		return false
	}
	for i, want := range p.segments {
		name, isID := strings.CutPrefix(want, "{")
		if !isID && segments[i] != want || isID && segments[i] == "" {
			return false
		}
		if isID {
			value, err := url.PathUnescape(segments[i])
			if err != nil {
				return false
			}
			r.SetPathValue(strings.TrimSuffix(name, "}"), value)
		}
	}
	return true
}

func (p routerPath) allowed() string {
	var methods []string
	for method := range p.methods {
		methods = append(methods, method)
	}
	slices.Sort(methods)
	return strings.Join(methods, ", ")
}

package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// listTools answers with the definitions of the tools that the tenant may call. Their digest
// is the ETag.
func (s *Server) listTools(w http.ResponseWriter, q *request) error {
	query := q.URL.Query()
	var names []string
	for _, list := range query["names"] {
		names = append(names, strings.Split(list, ",")...)
	}
	list, err := q.client.Tools(q.Context(), messages.GetTools{
		Provider: messages.Provider(query.Get("provider")), Names: names, Strict: query.Get("strict"), Cache: query.Get("cache") != "",
	})
	if err != nil {
		return err
	}
	tag := `"` + list.Digest + `"`
	w.Header().Set("ETag", tag)
	if known := strings.FieldsFunc(q.Header.Get("If-None-Match"), func(r rune) bool { return r == ',' || r == ' ' }); slices.Contains(known, tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	writeJSON(w, http.StatusOK, rawjson.MustMarshal(list))
	return nil
}

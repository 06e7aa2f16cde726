package httpapi

// Description returns the OpenAPI document that the server serves.
func Description() []byte { return description() }

// Routes returns the routes of the server, as "GET /path".
func Routes() (all []string) {
	for _, r := range routes {
		all = append(all, r.method+" "+r.path)
	}
	return all
}

// Waiting returns how many requests wait for a batch.
func (s *Server) Waiting() int { return len(s.waiting) }

// Readers sets how many sessions a tenant may stream.
func (s *Server) Readers(most int) {
	s.readers.mu.Lock()
	defer s.readers.mu.Unlock()
	s.readers.most = most
}

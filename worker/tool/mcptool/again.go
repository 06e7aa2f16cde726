package mcptool

import (
	"context"
	"slices"
)

// Again returns a server that shares the processes of s and has the tools that are in force
// now. These come from the lock file or, without one, from the newest list of the server. Both
// servers have to be closed.
func (s *Server) Again(ctx context.Context) (*Server, error) {
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	next := *s
	next.serve(now)
	s.users.Add(1)
	return &next, nil
}

// Changed reports whether [Server.Again] would return other tools. If the server has announced
// a change of its list, Changed reads the list again.
func (s *Server) Changed(ctx context.Context) (bool, error) {
	now, err := s.now(ctx)
	return err == nil && !now.equal(s.listed), err
}

// now returns the definitions that would be in force if the server were opened now. It starts
// no process. If no process runs, it returns the definitions in force.
func (s *Server) now(ctx context.Context) (List, error) {
	if s.cfg.LockPath() != "" {
		return s.accepted(ctx)
	}
	for _, slot := range s.pool.slots {
		session, _ := slot.current()
		if session == nil {
			continue
		}
		if err := session.refresh(ctx); err != nil {
			return List{}, err
		}
		return *session.listed.Load(), nil
	}
	return s.listed, nil
}

// equal reports whether two lists have the same definitions and refusals, in any order.
func (l List) equal(other List) bool { return slices.Equal(l.digests(), other.digests()) }

func (l List) digests() (all []string) {
	for _, d := range l.Tools {
		all = append(all, d.Digest())
	}
	for _, r := range l.Refused {
		all = append(all, r.String())
	}
	slices.Sort(all)
	return all
}

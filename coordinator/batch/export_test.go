package batch

// States returns the state of every call, in call order.
func (m *Machine) States() []string {
	states := make([]string, len(m.calls))
	for i := range m.calls {
		states[i] = m.calls[i].state().String()
	}
	return states
}

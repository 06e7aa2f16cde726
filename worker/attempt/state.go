package attempt

// State is the state of an attempt. The package comment explains each one.
type State uint8

// The states, in the order in which an attempt meets them.
const (
	Waiting State = iota
	Bouncing
	Looking
	Beginning
	Running
	Claiming
	Holding
	Stopping
	LookingAgain
	Offloading
	Storing
	Releasing
	Parking
	HandingBack
	Closing
	Over
)

var stateNames = [...]string{
	"waiting", "bouncing", "looking", "beginning", "running", "claiming", "holding", "stopping", "looking again",
	"offloading", "storing", "releasing", "parking", "handing back", "closing", "over",
}

func (s State) String() string { return stateNames[s] }

// phases reports whether the phases run in this state.
func (s State) phases() bool { return s >= Running && s <= Stopping }

// asks reports whether, in this state, a request to the journal is open and no phases run.
func (s State) asks() bool { return s == Looking || s >= LookingAgain && s <= HandingBack }

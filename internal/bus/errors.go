package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Errors by which callers decide what to do next. Other errors of the NATS client are wrapped.
var (
	// ErrNoResponders: nobody listens to the subject. For a write it means that no stream
	// accepts the subject at this moment, so nothing was stored.
	ErrNoResponders = errors.New("nobody listens on this subject")
	// ErrDisconnected: there is no connection at this moment, so nothing was sent.
	ErrDisconnected = errors.New("not connected to NATS")
	// ErrUnknown: the write was sent, but not acknowledged. It may be stored already, or be
	// stored a moment later. Read to find out.
	ErrUnknown = errors.New("no acknowledgement, so it may be stored or not")
	// ErrExists: the subject already has a message, and the stream keeps one for each subject.
	ErrExists = errors.New("a message of this subject is already there")
	// ErrFull: the stream or the server has reached a limit.
	ErrFull = errors.New("the stream is full")
	// ErrTooLarge: the message exceeds the server's or the stream's message size.
	ErrTooLarge = errors.New("message too large")
	// ErrConflict: another writer wrote the subject first.
	ErrConflict = errors.New("the subject was written by another")
	// ErrUndecided: another write of the subject is on its way to the replicas, so this write
	// was not stored. The other write may be an earlier try of the same writer, and may still
	// fail. Read, and try again if nothing new is stored.
	ErrUndecided = errors.New("another write of the subject is on its way")
	// ErrNotFound: the message, key or object does not exist.
	ErrNotFound = errors.New("not found")
	// ErrNoStream: the stream or bucket does not exist. Package provision makes it.
	ErrNoStream = errors.New("no such stream")
	// ErrCorrupt: the bytes of an object do not match its digest.
	ErrCorrupt = errors.New("stored object is damaged")
)

// Mismatch is the error for an existing stream or consumer with a setting that would break a
// promise of the fleet.
type Mismatch struct {
	Thing string // for example "stream TOOLFLEET_BATCHES"
	Field string // in the spelling of `nats stream info`
	Have  any
	Want  any
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("%s is not as toolfleet needs it: %s is %v, needed is %v; edit it, or delete it when nothing in it is needed, or use another prefix",
		m.Thing, m.Field, m.Have, m.Want)
}

// terminal lists the errors that do not disappear with time.
var terminal = []error{
	ErrExists, ErrConflict, ErrTooLarge, ErrCorrupt,
	nats.ErrBadSubject, nats.ErrConnectionClosed, nats.ErrSecureConnRequired,
	nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrPermissionViolation,
}

// IsTerminal reports whether the same call would fail again, however often it is tried.
func IsTerminal(err error) bool {
	var mismatch *Mismatch
	return errors.As(err, &mismatch) || slices.ContainsFunc(terminal, func(t error) bool { return errors.Is(err, t) })
}

// NotReady reports whether the error comes from a server or cluster that is still starting.
func NotReady(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode == codeClusterNotReady || api.ErrorCode == codeNoPeers
	}
	err = ClientError(err)
	return errors.Is(err, ErrNoResponders) || errors.Is(err, ErrDisconnected) || errors.Is(err, context.DeadlineExceeded)
}

// Error codes of the server. If a code stands for several errors, the text tells them apart.
const (
	codeAccountResources  = 10002
	codeNoPeers           = 10005
	codeClusterNotReady   = 10008
	codeInsufficient      = 10023
	codeMemoryResources   = 10028
	codeMessageNotFound   = 10037
	codeSequenceNotFound  = 10043
	codeStorageResources  = 10047
	codeMessageTooLarge   = 10054
	codeDeleteFailed      = 10057 // also means that the message does not exist
	codeStreamNotFound    = 10059
	codeWrongLastSequence = 10071
	codeStoreFailed       = 10077 // any limit was reached
	codeHeaderTooLarge    = 10097
	codeWrongLastConstant = 10164 // another write of the subject is on its way

	textPerSubject = "maximum messages per subject exceeded" // text of 10077
	textNoMessage  = "no message found"                      // text of 10057
	textStoreEOF   = "stream store EOF"                      // text of 10057: the sequence is after the newest message
)

// apiError translates an error in an answer of JetStream.
func apiError(e *jetstream.APIError) error {
	switch e.ErrorCode {
	case codeWrongLastSequence:
		return fmt.Errorf("%w: %w", ErrConflict, e)
	case codeWrongLastConstant:
		return fmt.Errorf("%w: %w", ErrUndecided, e)
	case codeStoreFailed:
		if strings.Contains(e.Description, textPerSubject) {
			return fmt.Errorf("%w: %w", ErrExists, e)
		}
		return fmt.Errorf("%w: %w", ErrFull, e)
	case codeAccountResources, codeInsufficient, codeMemoryResources, codeStorageResources:
		return fmt.Errorf("%w: %w", ErrFull, e)
	case codeMessageTooLarge, codeHeaderTooLarge:
		return fmt.Errorf("%w: %w", ErrTooLarge, e)
	case codeMessageNotFound, codeSequenceNotFound:
		return fmt.Errorf("%w: %w", ErrNotFound, e)
	case codeDeleteFailed:
		if e.Description == textNoMessage || e.Description == textStoreEOF {
			return fmt.Errorf("%w: %w", ErrNotFound, e)
		}
	case codeStreamNotFound:
		return fmt.Errorf("%w: %w", ErrNoStream, e)
	}
	return e
}

// ClientError translates an error that the NATS client returns before it sends anything. The
// packages below this one use it too.
func ClientError(err error) error {
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return ErrNoResponders
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrDisconnected):
		return ErrDisconnected
	}
	return err
}

// writeError translates the error of a write. It is like ClientError, but it turns a missing
// answer into ErrUnknown.
func writeError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, nats.ErrTimeout) {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return ClientError(err)
}

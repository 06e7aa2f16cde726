// Package sdkcheck holds the codecs against the providers' official Go SDKs. It has nothing but tests,
// and is a module of its own so that users of toolfleet never download those SDKs:
//
//	cd coordinator/provider/sdkcheck && go test ./...
//
// An SDK's types are the nearest thing to a provider's own word that needs no network. Three questions:
//
//   - is a golden's message.json real: does the SDK see the very calls in it that our reinjection answers?
//   - is a golden's reinjection.json legal: read into the SDK's request types and written again, is it
//     the same JSON, with nothing lost (unknown to the SDK) and nothing added (missing in ours)?
//   - the same for the tool definitions that each codec exports.
//
// The one loss that is the SDKs' own, and is allowed for, is that of digits beyond 2^53: some hold numbers
// as float64.
package sdkcheck

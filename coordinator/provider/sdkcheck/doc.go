// Package sdkcheck compares the codecs with the providers' official Go SDKs. It has only tests, and
// is a module of its own so that users of toolfleet never download those SDKs:
//
//	cd coordinator/provider/sdkcheck && go test ./...
//
// Without network, an SDK's types are the best source about a provider. The tests ask three
// questions:
//
//   - Is a golden's message.json real: does the SDK see in it exactly the calls that the codec's
//     reinjection answers?
//   - Is a golden's reinjection.json legal: read into the SDK's request types and written again, is
//     it the same JSON, with nothing lost (unknown to the SDK) and nothing added (missing in the
//     codec)?
//   - Are the tool definitions that each codec exports legal in the same sense?
//
// The checks allow only one loss: some SDKs hold numbers as float64, so digits beyond 2^53
// may change.
package sdkcheck

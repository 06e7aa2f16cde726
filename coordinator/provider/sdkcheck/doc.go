// Package sdkcheck compares the codecs with the providers' official Go SDKs. It has only
// tests. It is a module of its own, so that users of toolfleet never download those SDKs:
//
//	cd coordinator/provider/sdkcheck && go test ./...
//
// Without a network, the types of an SDK are the best source about a provider. The tests ask
// three questions:
//
//   - Is a golden's message.json real? The SDK must see in it exactly the calls that the
//     codec's reinjection answers.
//   - Is a golden's reinjection.json legal? When the SDK reads it into its request types and
//     writes it again, the JSON must stay the same. A lost member is unknown to the SDK. An
//     added member is missing in the codec.
//   - Are the tool definitions that each codec exports legal in the same sense?
//
// The checks allow only one loss: some SDKs hold numbers as float64, so digits beyond 2^53
// may change.
package sdkcheck

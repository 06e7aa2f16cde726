package tracing

import "go.opentelemetry.io/otel/attribute"

// Versions of the conventions for the names below. They are fixed here, because the GenAI
// conventions are still in development and have renamed attributes before. See docs/traces.md.
const (
	// SchemaURL is the version of OpenTelemetry's semantic conventions for error.type,
	// server.* and messaging.*.
	SchemaURL = "https://opentelemetry.io/schemas/1.43.0"
	// GenAI is the state of the GenAI conventions (execute-tool.md) for gen_ai.*.
	GenAI = "semantic-conventions-genai 2b38207, execute_tool"
)

// Names of spans. They have no ids, no tenant's subject and no arguments. All unknown tools
// share one name.
const (
	SendBatch    = "send toolfleet.batch"
	ProcessBatch = "process toolfleet.batch"
	Stage        = "stage"
	SendCall     = "send toolfleet.call"
	ProcessCall  = "process toolfleet.call"
	EndCall      = "end toolfleet.call" // for a call that a coordinator has ended
	Decide       = "process toolfleet.approval.decide"
	ExecuteTool  = "execute_tool" // followed by the tool's name
)

// Attributes of the GenAI conventions, and of the general ones.
const (
	OperationName  = attribute.Key("gen_ai.operation.name") // execute_tool
	ToolName       = attribute.Key("gen_ai.tool.name")
	ToolType       = attribute.Key("gen_ai.tool.type") // function
	ToolCallID     = attribute.Key("gen_ai.tool.call.id")
	ConversationID = attribute.Key("gen_ai.conversation.id") // the session
	Provider       = attribute.Key("gen_ai.provider.name")
	CallArguments  = attribute.Key("gen_ai.tool.call.arguments") // only if the operator asks for it
	CallResult     = attribute.Key("gen_ai.tool.call.result")    // only if the operator asks for it
	ErrorType      = attribute.Key("error.type")                 // a Status or Code of package messages
)

// Attributes of the messaging conventions.
const (
	MessagingSystem      = attribute.Key("messaging.system")         // nats
	MessagingOperation   = attribute.Key("messaging.operation.name") // send, process
	MessagingType        = attribute.Key("messaging.operation.type") // send, process
	MessagingDestination = attribute.Key("messaging.destination.template")
	MessagingGroup       = attribute.Key("messaging.consumer.group.name")
	MessagingCount       = attribute.Key("messaging.batch.message_count")
)

// Attributes of toolfleet.
const (
	Batch         = attribute.Key("toolfleet.batch.id")
	Tenant        = attribute.Key("toolfleet.tenant")
	BatchStatus   = attribute.Key("toolfleet.batch.status")
	Stages        = attribute.Key("toolfleet.batch.stages")
	Round         = attribute.Key("toolfleet.batch.round")
	Resumed       = attribute.Key("toolfleet.batch.resumed") // the batch was driven before
	Suspended     = attribute.Key("toolfleet.batch.rested")  // suspended: it only waits for people
	StageIndex    = attribute.Key("toolfleet.stage.index")
	StageCalls    = attribute.Key("toolfleet.stage.calls")
	Concurrent    = attribute.Key("toolfleet.stage.concurrent")
	CallIndex     = attribute.Key("toolfleet.call.index")
	CallStatus    = attribute.Key("toolfleet.call.status")
	CallKind      = attribute.Key("toolfleet.call.kind")
	CallAttempt   = attribute.Key("toolfleet.call.attempt")
	QueueWait     = attribute.Key("toolfleet.call.queue_wait_ms")
	ToolDigest    = attribute.Key("toolfleet.tool.digest")
	ResultBytes   = attribute.Key("toolfleet.call.result_bytes")
	Truncated     = attribute.Key("toolfleet.call.truncated")
	Refused       = attribute.Key("toolfleet.sandbox.refused") // as far as the command's output shows
	FailedPhase   = attribute.Key("toolfleet.phase.failed")
	Pool          = attribute.Key("toolfleet.pool")
	Worker        = attribute.Key("toolfleet.worker")
	Coordinator   = attribute.Key("toolfleet.coordinator")
	Stream        = attribute.Key("toolfleet.stream")
	Sequence      = attribute.Key("toolfleet.stream_sequence")
	DeliveryCount = attribute.Key("toolfleet.delivery_count")
	Fence         = attribute.Key("toolfleet.fence")
	PermEffect    = attribute.Key("toolfleet.permission.effect") // allow, ask, deny
	// PermSource has one of the values rule, tier, hook, default and person.
	PermSource = attribute.Key("toolfleet.permission.source")
	PermRule   = attribute.Key("toolfleet.permission.rule")
	PermTier   = attribute.Key("toolfleet.permission.tier")
	Approval   = attribute.Key("toolfleet.approval.id")
	Verdict    = attribute.Key("toolfleet.approval.verdict")
	LinkReason = attribute.Key("toolfleet.link") // one of the reasons below
)

// Reasons for a link to another span.
const (
	Redelivered = "redelivery" // the message was delivered before and not settled
	Retried     = "retry"      // an earlier attempt failed and was given up
	TakenOver   = "takeover"   // an earlier attempt was lost with its worker
	Parked      = "parked"     // the attempt that asked people
	Driven      = "driven"     // an earlier driver of the batch has sent the attempt
	Asked       = "asked"      // the attempt whose question was answered
)

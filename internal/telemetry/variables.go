package telemetry

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// otlp is the prefix of the variables about the exporter.
const otlp = "OTEL_EXPORTER_OTLP_"

// wanted reports whether the variables ask for traces. Without any variable it returns false:
// the exporters would otherwise use a collector on this machine, and users without a collector
// would see failed exports.
func wanted() (bool, error) {
	disabled := given("OTEL_SDK_DISABLED")
	if err := isBool(disabled); disabled != "" && err != nil {
		return false, fmt.Errorf("OTEL_SDK_DISABLED: %w", err)
	}
	exporter := os.Getenv("OTEL_TRACES_EXPORTER")
	if strings.EqualFold(disabled, "true") || exporter == "none" {
		return false, nil
	}
	return exporter != "" || given(otlp+"ENDPOINT") != "" || given(otlp+"TRACES_ENDPOINT") != "", nil
}

// given returns a variable without the blanks around it, as the SDK reads most variables.
func given(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// variable is an environment variable with its check. If the SDK cannot read a value, it uses
// its default. It may also write the value to stderr, even if the value is a secret.
type variable struct {
	name  string
	check func(value string) error
	exact bool // the SDK keeps blanks around the value
}

func variables() []variable {
	list := []variable{
		{"OTEL_TRACES_EXPORTER", isOneOf("otlp", "console", "none"), true},
		{"OTEL_TRACES_SAMPLER", isOneOf(slices.Concat(samplers, remoteSamplers)...), false},
		{"OTEL_TRACES_SAMPLER_ARG", isSamplerArgument, false},
		{"OTEL_RESOURCE_ATTRIBUTES", isPairs(anyName), false},
		{"OTEL_BSP_SCHEDULE_DELAY", isCount, true}, {"OTEL_BSP_EXPORT_TIMEOUT", isCount, true},
		{"OTEL_BSP_MAX_QUEUE_SIZE", isCount, true}, {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", isCount, true},
	}
	for _, of := range []string{otlp, otlp + "TRACES_"} {
		list = append(list,
			variable{of + "PROTOCOL", isOneOf("http/protobuf", "grpc"), true},
			variable{of + "ENDPOINT", isEndpoint, false},
			variable{of + "HEADERS", isPairs(headerName), false},
			variable{of + "TIMEOUT", isCount, false},
			variable{of + "COMPRESSION", isOneOf("gzip", "none"), false},
			variable{of + "INSECURE", isBool, false},
			variable{of + "CERTIFICATE", isCertificates, false},
			variable{of + "CLIENT_CERTIFICATE", keyPair(of), false}, variable{of + "CLIENT_KEY", keyPair(of), false},
		)
	}
	// A general OTLP variable is not used if the variable for traces is set.
	return slices.DeleteFunc(list, func(v variable) bool {
		what, general := strings.CutPrefix(v.name, otlp)
		return general && given(otlp+"TRACES_"+what) != ""
	})
}

// doubtful lists variables that may be wrong: with the SDK's default, the traces are still
// useful.
func doubtful() []variable {
	list := []variable{{"OTEL_TRACES_SAMPLER", isHere, false}}
	for _, what := range []string{"SPAN_ATTRIBUTE_VALUE_LENGTH", "ATTRIBUTE_VALUE_LENGTH", "SPAN_ATTRIBUTE_COUNT", "ATTRIBUTE_COUNT", "SPAN_EVENT_COUNT",
		"EVENT_ATTRIBUTE_COUNT", "SPAN_LINK_COUNT", "LINK_ATTRIBUTE_COUNT"} {
		list = append(list, variable{"OTEL_" + what + "_LIMIT", isInteger, true})
	}
	return list
}

// checkVariables returns an error with all mistakes in the variables about traces. It quotes
// no value that may be a secret.
func checkVariables() error { return errors.Join(check(variables())...) }

// doubts returns the mistakes in variables that do not prevent a start.
func doubts() []error { return check(doubtful()) }

func check(list []variable) (errs []error) {
	for _, v := range list {
		value := given(v.name)
		if v.exact {
			value = os.Getenv(v.name)
		}
		if value == "" {
			continue
		}
		if err := v.check(value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.name, err))
		}
	}
	return errs
}

func isOneOf(words ...string) func(string) error {
	return func(value string) error {
		if !slices.Contains(words, value) {
			return fmt.Errorf("%.40q is not one of %s", value, strings.Join(words, ", "))
		}
		return nil
	}
}

func isBool(value string) error { return isOneOf("true", "false")(strings.ToLower(value)) }

var samplers = []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}

// remoteSamplers lists samplers of the specification that the SDK does not have.
var remoteSamplers = []string{"jaeger_remote", "parentbased_jaeger_remote", "xray"}

func isHere(sampler string) error {
	if slices.Contains(remoteSamplers, sampler) {
		return fmt.Errorf("%s is not among the samplers here: %s", sampler, strings.Join(samplers, ", "))
	}
	return nil
}

func isInteger(value string) error {
	if _, err := strconv.Atoi(value); err != nil {
		return fmt.Errorf("%.40q is not a whole number", value)
	}
	return nil
}

func isSamplerArgument(value string) error {
	if !strings.HasSuffix(given("OTEL_TRACES_SAMPLER"), "traceidratio") {
		return nil // no other sampler takes an argument
	}
	if share, err := strconv.ParseFloat(value, 64); err != nil || !(share >= 0 && share <= 1) {
		return fmt.Errorf("%.40q is not a share of the traces between 0 and 1, such as 0.05", value)
	}
	return nil
}

// isCount accepts numbers of spans and of milliseconds, from 1 to 4,194,304. Because of this
// limit, a typing error cannot use up all memory.
func isCount(value string) error {
	if n, err := strconv.Atoi(value); err != nil || n < 1 || n > 1<<22 {
		return fmt.Errorf("%.40q is not a whole number from 1 to %d", value, 1<<22)
	}
	return nil
}

// isEndpoint accepts what the exporters accept: a URL, and for gRPC also host:port.
func isEndpoint(value string) error {
	u, err := url.Parse(value)
	switch {
	case err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		return nil
	case err == nil && protocol() == "grpc":
		return nil
	}
	return errors.New("want a URL such as http://collector:4318")
}

// protocol returns the protocol for traces, or "" if no variable names one.
func protocol() string {
	return cmp.Or(os.Getenv(otlp+"TRACES_PROTOCOL"), os.Getenv(otlp+"PROTOCOL"))
}

var (
	anyName    = regexp.MustCompile(`.`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
)

func isPairs(name *regexp.Regexp) func(string) error {
	return func(value string) error {
		for i, pair := range strings.Split(value, ",") {
			if strings.TrimSpace(pair) == "" { // a comma at the end
				continue
			}
			key, text, ok := strings.Cut(pair, "=")
			if _, err := url.PathUnescape(text); !ok || err != nil || !name.MatchString(strings.TrimSpace(key)) {
				return fmt.Errorf("entry %d is not of the form name=value, with %% escapes where the value needs them", i+1)
			}
		}
		return nil
	}
}

func isCertificates(file string) error {
	pem, err := os.ReadFile(file)
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(pem) {
		err = fmt.Errorf("%s holds no certificate in PEM form", file)
	}
	return err
}

// keyPair checks that the client certificate and its key are both given, and that they belong
// together.
func keyPair(of string) func(string) error {
	return func(string) error {
		certificate, key := os.Getenv(of+"CLIENT_CERTIFICATE"), os.Getenv(of+"CLIENT_KEY")
		if certificate == "" || key == "" {
			return fmt.Errorf("%sCLIENT_CERTIFICATE and %sCLIENT_KEY belong together: give both or neither", of, of)
		}
		_, err := tls.LoadX509KeyPair(certificate, key)
		return err
	}
}

package telemetry

import (
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

// otlp begins the names of the variables about the exporter.
const otlp = "OTEL_EXPORTER_OTLP_"

// wanted reports whether somebody wants traces. The exporters' own default is a collector on this machine, which would have
// everybody without one read of failed exports.
func wanted() (bool, error) {
	disabled := os.Getenv("OTEL_SDK_DISABLED")
	if err := isBool(disabled); disabled != "" && err != nil {
		return false, fmt.Errorf("OTEL_SDK_DISABLED: %w", err)
	}
	exporter := os.Getenv("OTEL_TRACES_EXPORTER")
	if strings.EqualFold(disabled, "true") || exporter == "none" {
		return false, nil
	}
	return exporter != "" || os.Getenv(otlp+"ENDPOINT") != "" || os.Getenv(otlp+"TRACES_ENDPOINT") != "", nil
}

// variable is what can be wrong with one. The SDK itself takes its default in the place of a value that it cannot read, and
// some it writes to stderr with the value, secrets included.
type variable struct {
	name  string
	check func(value string) error
}

func variables() []variable {
	list := []variable{
		{"OTEL_TRACES_EXPORTER", isOneOf("otlp", "console", "none")},
		{"OTEL_TRACES_SAMPLER", isOneOf(samplers...)},
		{"OTEL_TRACES_SAMPLER_ARG", isSamplerArgument},
		{"OTEL_RESOURCE_ATTRIBUTES", isPairs(anyName)},
		{"OTEL_BSP_SCHEDULE_DELAY", isCount}, {"OTEL_BSP_EXPORT_TIMEOUT", isCount},
		{"OTEL_BSP_MAX_QUEUE_SIZE", isCount}, {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", isCount},
	}
	for _, of := range []string{otlp, otlp + "TRACES_"} {
		list = append(list,
			variable{of + "PROTOCOL", isOneOf("http/protobuf", "grpc")},
			variable{of + "ENDPOINT", isEndpoint},
			variable{of + "HEADERS", isPairs(headerName)},
			variable{of + "TIMEOUT", isCount},
			variable{of + "COMPRESSION", isOneOf("gzip", "none")},
			variable{of + "INSECURE", isBool},
			variable{of + "CERTIFICATE", isCertificates},
			variable{of + "CLIENT_CERTIFICATE", keyPair(of)}, variable{of + "CLIENT_KEY", keyPair(of)},
		)
	}
	return list
}

// checkVariables joins everything that is wrong with the variables about traces. No value that may be a secret is quoted.
func checkVariables() error {
	var errs []error
	for _, v := range variables() {
		if value := strings.TrimSpace(os.Getenv(v.name)); value != "" {
			if err := v.check(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", v.name, err))
			}
		}
	}
	return errors.Join(errs...)
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

func isSamplerArgument(value string) error {
	if !strings.HasSuffix(os.Getenv("OTEL_TRACES_SAMPLER"), "traceidratio") {
		return nil // no other takes one
	}
	if share, err := strconv.ParseFloat(value, 64); err != nil || !(share >= 0 && share <= 1) {
		return fmt.Errorf("%.40q is not a share of the traces between 0 and 1, such as 0.05", value)
	}
	return nil
}

// isCount takes numbers of spans and of milliseconds. The bound keeps a slip of the finger from taking all memory.
func isCount(value string) error {
	if n, err := strconv.Atoi(value); err != nil || n < 1 || n > 1<<22 {
		return fmt.Errorf("%.40q is not a whole number from 1 to %d", value, 1<<22)
	}
	return nil
}

// isEndpoint takes what the exporters understand: a URL, and for gRPC also host:port.
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

// protocol is how traces are to be sent; "": not said.
func protocol() string {
	if p := os.Getenv(otlp + "TRACES_PROTOCOL"); p != "" {
		return p
	}
	return os.Getenv(otlp + "PROTOCOL")
}

var (
	anyName    = regexp.MustCompile(`.`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
)

func isPairs(name *regexp.Regexp) func(string) error {
	return func(value string) error {
		for i, pair := range strings.Split(value, ",") {
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

// keyPair checks a certificate of ours with its key: they belong together.
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

package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/strictyaml"
)

// readText reads a setting from text: a flag, an environment variable, or a scalar of the file.
// Lists and mappings are written as YAML, for example [a, b].
func (s setting) readText(c *Config, text string) (err error) {
	switch field := s.field(c).(type) {
	case *string:
		*field, err = text, oneOf(text, s.enum...)
	case *Path:
		*field = Path(text)
	case *Secret:
		*field = Secret(text)
	case *bool:
		*field, err = text == "true", oneOf(text, "true", "false")
	case *int:
		*field, err = wholeNumber(text, s.least)
	case *time.Duration:
		*field, err = duration(text)
	case *Interval:
		*field, err = interval(text)
	case *Size:
		*field, err = size(text)
	default:
		r := fileReader{strictyaml.Parse("", []byte(text), maxBrackets), c}
		if len(r.Errors) > 0 {
			return fmt.Errorf("want %s: %s", s.shape(), r.Errors[0].Message)
		}
		if r.value(s, r.Root); len(r.Errors) > 0 {
			return errors.New(r.Errors[0].Message)
		}
	}
	return err
}

// oneOf checks that a word is one of the allowed words. If allowed is empty, every word is
// allowed.
func oneOf(text string, allowed ...string) error {
	if len(allowed) > 0 && !slices.Contains(allowed, text) {
		return fmt.Errorf("%.80q is not one of %s", text, strings.Join(allowed, ", "))
	}
	return nil
}

// shape describes the values of a setting for an error text.
func (s setting) shape() string {
	switch s.field(&Config{}).(type) {
	case *bool:
		return "true or false"
	case *int:
		return fmt.Sprintf("a whole number from %d", s.least)
	case *time.Duration:
		return "a duration such as 500ms, 10s or 1h30m"
	case *Interval:
		return "always, or a duration such as 100ms"
	case *Size:
		return "a size such as 64KB, 10MB or 2GiB"
	case *[]string:
		return "a list of texts such as [one, two]"
	case *map[string]int:
		return "a mapping such as {default: {max_in_flight: 50}}"
	case *map[string]int64:
		return "a mapping such as {CALLS: 10GB}"
	case *map[string]string:
		return "a mapping such as {acme-gpu: acme}"
	}
	if len(s.enum) > 0 {
		return "one of " + strings.Join(s.enum, ", ")
	}
	return "text"
}

func wholeNumber(text string, least int) (int, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || int(n) < least {
		return 0, fmt.Errorf("%.80q is not a whole number from %d", text, least)
	}
	return int(n), nil
}

func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Millisecond {
		return 0, fmt.Errorf("%.80q is no duration of at least 1ms, such as 500ms, 10s or 1h30m", text)
	}
	return d, nil
}

func interval(text string) (Interval, error) {
	if text == "always" {
		return 0, nil
	}
	d, err := duration(text)
	if err != nil {
		return 0, fmt.Errorf("%.80q is neither always nor a duration such as 100ms", text)
	}
	return Interval(d), nil
}

var sizePattern = regexp.MustCompile(`^([0-9]{1,9}) ?(B|KB|KiB|MB|MiB|GB|GiB|TB|TiB)?$`)

// size reads a number of bytes. KB and KiB are both 1,024 bytes, as in the tools file.
func size(text string) (Size, error) {
	parts := sizePattern.FindStringSubmatch(text)
	if parts == nil {
		return 0, fmt.Errorf("%.80q is no size such as 64KB, 10MB or 2GiB", text)
	}
	n, _ := strconv.ParseInt(parts[1], 10, 64) // the pattern allows at most nine digits
	return Size(n << (10 * max(0, strings.IndexAny("BKMGT", firstOf(parts[2]))))), nil
}

func firstOf(unit string) string {
	if unit == "" {
		return "B"
	}
	return unit[:1]
}

func (s Size) String() string {
	units := []string{"B", "KB", "MB", "GB", "TB"}
	i := 0
	for s >= 1024 && s%1024 == 0 && i < len(units)-1 {
		s /= 1024
		i++
	}
	return fmt.Sprintf("%d%s", int64(s), units[i])
}

func (i Interval) String() string {
	if i == 0 {
		return "always"
	}
	return time.Duration(i).String()
}

// show returns a setting's value as YAML on one line. It hides secrets, and user and password
// in a URL.
func (s setting) show(c *Config) string {
	switch field := s.field(c).(type) {
	case *string:
		return quoteYAML(HideUser(*field))
	case *Path:
		return quoteYAML(string(*field))
	case *Secret:
		if *field == "" {
			return `""`
		}
		return quoteYAML("(hidden)")
	case *bool:
		return strconv.FormatBool(*field)
	case *int:
		return strconv.Itoa(*field)
	case *time.Duration:
		return short(field.Round(time.Millisecond))
	case *Interval:
		return field.String()
	case *Size:
		return field.String()
	case *[]string:
		return flow(*field, quoteYAML, "[", "]")
	case *map[string]int:
		return flow(slices.Sorted(maps.Keys(*field)), func(name string) string {
			return fmt.Sprintf("%s: {max_in_flight: %d}", name, (*field)[name])
		}, "{", "}")
	case *map[string]int64:
		return flow(slices.Sorted(maps.Keys(*field)), func(name string) string {
			return fmt.Sprintf("%s: %v", name, Size((*field)[name]))
		}, "{", "}")
	case *map[string]string:
		return flow(slices.Sorted(maps.Keys(*field)), func(name string) string {
			return quoteYAML(name) + ": " + quoteYAML((*field)[name])
		}, "{", "}")
	}
	panic("config: setting " + s.key + " has a type that nobody reads")
}

func flow(items []string, each func(string) string, open, end string) string {
	shown := make([]string, len(items))
	for i, item := range items {
		shown[i] = each(item)
	}
	return open + strings.Join(shown, ", ") + end
}

// short formats a duration without parts that are zero: 1h instead of 1h0m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

var plainYAML = regexp.MustCompile(`^[A-Za-z/_.][A-Za-z0-9/_.:@-]*[A-Za-z0-9/_.]$`)

// quoteYAML returns text as a YAML scalar, quoted if necessary.
func quoteYAML(text string) string {
	if plainYAML.MatchString(text) && !slices.Contains([]string{"true", "false", "null"}, text) {
		return text
	}
	return strconv.Quote(text)
}

var userInfo = regexp.MustCompile(`://[^/@\s]*@`)

// HideUser replaces user and password in URLs by (hidden).
func HideUser(text string) string { return userInfo.ReplaceAllString(text, "://(hidden)@") }

package sandbox

import (
	"os/exec"
	"testing"
)

func BenchmarkSpaces(b *testing.B) {
	full := Local()
	for name, n := range map[string]Namespaces{"none": {}, "user": {User: true}, "mount": {Mount: true}, "usermount": {User: true, Mount: true}, "pid": {PID: true}, "all": {User: true, Mount: true, PID: true, OwnPID: true}} {
		b.Run(name, func(b *testing.B) {
			m := full
			m.Namespaces = n
			plan := Resolve(Policy{Read: SystemPaths("", "/usr/bin"), Write: []string{"/tmp"}}, m)
			box := &Box{Plan: plan}
			if err := box.sealed.seal(plan.Steps); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				cmd := exec.Command("/bin/true")
				e, err := box.Wrap(cmd)
				if err != nil {
					b.Fatal(err)
				}
				err = cmd.Start()
				e.Started()
				if err != nil {
					b.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					b.Fatal(err)
				}
				if _, _, err := e.Ended(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

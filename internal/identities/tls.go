package identities

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path"
	"path/filepath"
	"time"

	natsfiles "github.com/toolfleet/toolfleet/deploy/nats"
)

// TLS says where the server's certificate comes from. With the zero value, New makes a trial
// authority, and a certificate that this authority signs.
type TLS struct {
	None bool // the server speaks no TLS
	// Cert, Key and CA are files that exist already, here and on the server's machine. Clients
	// trust CA or, if it is empty, the authorities of their systems.
	Cert, Key, CA string
}

// How long certificates are valid: those that the trial authority signs, and its own.
const (
	certificateHolds = 365 * 24 * time.Hour
	authorityHolds   = 10 * certificateHolds
)

func (t TLS) check() error {
	switch {
	case t.None && (t.Cert != "" || t.Key != "" || t.CA != ""):
		return errors.New("without TLS there is no certificate: leave out --no-tls, or --tls-cert, --tls-key and --tls-ca")
	case (t.Cert == "") != (t.Key == ""), t.CA != "" && t.Cert == "":
		return errors.New("a certificate needs --tls-cert and --tls-key; --tls-ca names who has signed it")
	case t.Cert != "":
		if _, err := tls.LoadX509KeyPair(t.Cert, t.Key); err != nil {
			return fmt.Errorf("read the certificate: %w", err)
		}
	}
	return nil
}

func (t TLS) scheme() string {
	if t.None {
		return "nats://"
	}
	return "tls://"
}

// write writes the certificates. at is the folder of the server's files on the server's
// machine. write returns the content of server.conf and the authority that clients trust. The
// authority is nil if clients trust those of their systems.
func (t TLS) write(dir, at string, hosts []string) (server, authority []byte, err error) {
	template, err := fs.ReadFile(natsfiles.Files, serverConf)
	if err != nil {
		return nil, nil, err
	}
	conf := string(template)
	cert, key := path.Join(filepath.ToSlash(at), "tls/server.crt"), path.Join(filepath.ToSlash(at), "tls/server.key")
	switch {
	case t.Cert != "":
		cert, err = filepath.Abs(t.Cert)
		if err == nil {
			key, err = filepath.Abs(t.Key)
		}
		if err == nil && t.CA != "" {
			if authority, err = os.ReadFile(t.CA); err == nil && !x509.NewCertPool().AppendCertsFromPEM(authority) {
				err = fmt.Errorf("%s holds no certificate", t.CA)
			}
		}
	case !t.None:
		authority, err = newAuthority(dir)
		if err == nil {
			err = newCertificate(dir, hosts, write)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if !t.None {
		conf += fmt.Sprintf("\n# Paths on the server's machine.\ntls {\n  cert_file: %q\n  key_file: %q\n  min_version: \"1.2\"\n  timeout: 5\n}\n", cert, key)
	}
	if authority != nil && t.Cert != "" {
		if err := write(authorityFile(dir), authority); err != nil {
			return nil, nil, err
		}
	}
	return []byte(conf), authority, nil
}

func authorityFile(dir string) string { return filepath.Join(dir, "ca", "ca.crt") }

// readAuthority returns the authority that clients trust, or nil if clients trust those of
// their systems.
func readAuthority(dir string) ([]byte, error) {
	body, err := os.ReadFile(authorityFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return body, err
}

// Certificate makes a new certificate for the server, signed by the trial authority. It
// replaces the old one. The server uses it after a reload.
func Certificate(dir string, hosts []string) error {
	if _, err := List(dir); err != nil {
		return err
	}
	return newCertificate(dir, hosts, replace)
}

// newAuthority makes the trial authority and returns its certificate.
func newAuthority(dir string) ([]byte, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "toolfleet trial authority"}, NotAfter: time.Now().Add(authorityHolds),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	cert, key, err := sign(template, nil)
	if err == nil {
		err = write(authorityFile(dir), cert)
	}
	if err == nil {
		err = write(filepath.Join(dir, "ca", "ca.key"), key)
	}
	return cert, err
}

// newCertificate makes a certificate for the server and passes it to store.
func newCertificate(dir string, hosts []string, store func(string, []byte) error) error {
	issuer, err := tls.LoadX509KeyPair(authorityFile(dir), filepath.Join(dir, "ca", "ca.key"))
	if err != nil {
		return fmt.Errorf("read the trial authority: %w", err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: hosts[0]}, NotAfter: time.Now().Add(certificateHolds),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	cert, key, err := sign(template, &issuer)
	if err == nil {
		err = store(filepath.Join(dir, "nats", "tls", "server.key"), key)
	}
	if err == nil {
		err = store(filepath.Join(dir, "nats", "tls", "server.crt"), cert)
	}
	return err
}

// sign makes a key and its certificate, both as PEM. Without an issuer, the key signs its own
// certificate.
func sign(template *x509.Certificate, issuer *tls.Certificate) (cert, key []byte, err error) {
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, err
	}
	template.NotBefore = time.Now().Add(-time.Hour) // clocks differ
	parent, signer := template, any(pair)
	if issuer != nil {
		parent, signer = issuer.Leaf, issuer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pair.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(pair)
	if err != nil {
		return nil, nil, err
	}
	encode := func(kind string, der []byte) []byte {
		var out bytes.Buffer
		_ = pem.Encode(&out, &pem.Block{Type: kind, Bytes: der})
		return out.Bytes()
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", secret), nil
}

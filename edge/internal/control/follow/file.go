package follow

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	pb "github.com/sentinelgo/sentinel/edge/proto"
)

// file is the last good version on the disk: the SHA-256 of what follows, and a
// pb.LastGood. "" as directory is that nothing is kept.
type file struct{ dir string }

func (f file) path() string { return filepath.Join(f.dir, "last-good.pb") }

// read returns nil if there is no file.
func (f file) read() (*pb.LastGood, error) {
	if f.dir == "" {
		return nil, nil
	}
	data, err := os.ReadFile(f.path())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decode(data)
}

func decode(data []byte) (*pb.LastGood, error) {
	if len(data) < sha256.Size {
		return nil, errors.New("the file is too short")
	}
	sum := sha256.Sum256(data[sha256.Size:])
	if !bytes.Equal(sum[:], data[:sha256.Size]) {
		return nil, errors.New("the file is damaged: its checksum is wrong")
	}
	var last pb.LastGood
	if err := proto.Unmarshal(data[sha256.Size:], &last); err != nil {
		return nil, fmt.Errorf("the file is of another program: %w", err)
	}
	if s := last.GetSnapshot(); s.GetVersion() <= 0 || s.GetEpoch() == "" {
		return nil, errors.New("the file has no version")
	}
	return &last, nil
}

// write replaces the file: whoever reads it, also after a crash, finds the old one
// or the new one.
func (f file) write(last *pb.LastGood) error {
	if f.dir == "" {
		return nil
	}
	body, err := proto.Marshal(last)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	temp, err := os.CreateTemp(f.dir, ".last-good-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // it has another name if all went well
	_, err = temp.Write(append(sum[:], body...))
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), f.path()); err != nil {
		return err
	}
	dir, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Command sentinel-control is the edge's control plane: it keeps the routes and
// backends that nodes share, and hands them out.
//
//	sentinel-control serve      serve nodes and the operator
//	sentinel-control validate   all that is wrong with a file
//	sentinel-control apply      make a file the newest version
//	sentinel-control diff       what a file, or a version, would change
//	sentinel-control history    the versions
//	sentinel-control rollback   make an earlier version the newest again
//	sentinel-control nodes      who has which version, and who refused it and why
//	sentinel-control backup     a copy of the database
//	sentinel-control check      whether the database is whole
//	sentinel-control version    which build this is
//
// serve, backup and check work on the database, and the others ask a control
// plane that runs.
package main

import (
	"flag"
	"io"
	"os"

	"github.com/sentinelgo/sentinel/edge/internal/command"
)

// exitStore is for a database that cannot be used.
const exitStore = 3

const exitCodes = "Exit codes: 0 fine; 1 it failed while it ran; 2 a faulty file or bad arguments;\n3 the database cannot be used.\n"

const tokenVariable = "SENTINEL_CONTROL_TOKEN" // #nosec G101 -- its name

// cli is what all commands take.
type cli struct {
	admin     string // where a control plane answers its operator
	tokenFile string
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process.
func run(args []string, stdout, stderr io.Writer) int {
	c := &cli{}
	return command.Program{
		Name: "sentinel-control", Is: "keeps and hands out the routes and backends of a fleet.", Codes: exitCodes,
		Commands: c.commands(), Flags: "-admin ADDRESS, -token-file FILE and ",
		Declare: func(fs *flag.FlagSet) {
			fs.StringVar(&c.admin, "admin", "127.0.0.1:9902", "the operator's `ADDRESS`")
			fs.StringVar(&c.tokenFile, "token-file", "", "the token that a write needs is in `FILE`; otherwise in $"+tokenVariable)
		},
	}.Run(args, stdout, stderr)
}

// commands are in the order in which one needs them.
func (c *cli) commands() []command.Command {
	return []command.Command{
		{
			Name: "serve", Does: "serve nodes and the operator until SIGTERM", Run: c.serve,
			More: "The database is made if it is not there. The log is lines of JSON.\n",
		},
		{
			Name: "validate", Args: "FILE", Does: "say all that is wrong with a file", Run: c.validate,
			More: "The file has rate_limit, routes and backends. No control plane is asked.\n",
		},
		{
			Name: "apply", Args: "FILE", Does: "make a file the newest version", Run: c.apply,
			More: "Without -if-version it replaces whatever is there.\n",
		},
		{
			Name: "diff", Args: "FILE | VERSION [VERSION]", Does: "say what would change, or what has",
			More: "A file is compared with the newest version. A version is compared with the one before it,\nor with the one that comes first.\n", Run: c.diff,
		},
		{Name: "history", Does: "list the versions, the newest first", Run: c.history},
		{
			Name: "rollback", Args: "VERSION", Does: "make an earlier version the newest again", Run: c.rollback,
			More: "It becomes a new version with the content of the old one.\n",
		},
		{Name: "nodes", Does: "list who has which version, and who refused it and why", Run: c.nodes},
		{
			Name: "backup", Args: "FILE", Does: "copy the database, also while it is used", Run: c.backup,
			More: "To use a copy, stop the control plane, put it in the place of the database, and start again:\nnodes take its versions although they have seen later ones.\n",
		},
		{Name: "check", Does: "read the whole database, and say whether it is whole", Run: c.check},
		command.Version(),
	}
}

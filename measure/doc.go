// Package measure is what the programs that measure Sentinel share: histograms and
// medians, the report with its tables and bars, and the plan of a run. bench,
// edge/bench and integration/proof are written on it, and nothing else is: a service
// that uses Sentinel never has it.
package measure

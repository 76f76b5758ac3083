// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package madtest is the conformance suite of the transports: what every
// implementation of [transport.Fabric] has to do, whatever lies below it.
//
// [TestTransport] takes a [Harness] that opens a fabric with one port that
// reaches a subnet administrator, and runs the cases as subtests. Every subtest
// opens its own fabric and is wrapped in [CheckLeaks], so a transport that
// leaves a goroutine or a descriptor behind fails. Cases that a transport cannot
// have are left out by the flags of the harness and by [transport.Caps]; no case
// is skipped at run time.
//
// The suite writes the MADs that it sends byte by byte and does not use the
// attribute codecs of mad/sa beyond the PathRecord: it must not agree with a
// codec by sharing its mistakes.
//
// Time limits are generous bounds, never measures: a case that waits for an
// answer waits up to [AnswerTime], one that waits for nothing waits briefly.
//
// The package mad/madtest/peer runs the programs that live on the other side:
// the ibsim simulator, OpenSM and the stock ibacm with its clients.
package madtest

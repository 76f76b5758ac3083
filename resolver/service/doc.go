// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package service puts a daemon together from the rooms of the house: settings,
// transport, SA clients, address sources, engine and doors, in the order that
// lets a second instance do no harm and no client wait in vain.
//
// Start takes the lock file before anything else is touched, opens the log,
// attaches to the fabric, starts the engine, then the doors, and only then tells
// the service manager that it is ready. Stop goes the other way: doors drain
// first, so that what was asked is answered.
package service

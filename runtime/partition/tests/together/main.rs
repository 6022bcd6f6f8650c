//! Sites that bring their partitions together.

mod away;
mod commit_gate;
mod log_order;
mod sites;
mod streams;

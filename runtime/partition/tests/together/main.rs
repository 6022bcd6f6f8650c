//! Sites that bring their partitions together.

mod away;
mod log_order;
mod sites;
mod streams;

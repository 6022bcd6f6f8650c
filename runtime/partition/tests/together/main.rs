//! Sites that bring their partitions together.

mod away;
mod sites;
mod streams;

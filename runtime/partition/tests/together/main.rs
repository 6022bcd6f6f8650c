//! Sites that bring their partitions together.

mod away;
mod meetings;
mod sites;

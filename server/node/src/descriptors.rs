//! Descriptors of this process, shared between connections and its own files. Connections get the rest.

use reprise_env::raise_descriptor_limit;
use reprise_http::ConnectionLimits;

use crate::{
    output::grouped,
    server_output::{self, Line},
};

/// Descriptors that a server keeps for its log, checkpoints, catalog, backups, probes and control.
pub const OWN: u64 = 256;
/// Descriptors that it keeps for its standbys: two for each socket that the listener may have.
const OF_STANDBYS: u64 = 256;

/// Raises the limit of this process. Returns how many descriptors it may have.
pub fn raise() -> u64 {
    raise_descriptor_limit().unwrap_or_else(|error| {
        let text = format!("can't read the limit of open files ({error}); the server assumes that there is no limit");
        server_output::warning("open_files", text);
        u64::MAX
    })
}

/// Bounds connections by the descriptors that the server's own files leave, and says so.
pub fn bound(limits: ConnectionLimits, may_be_open: u64, takes_standbys: bool) -> ConnectionLimits {
    let reserve = OWN + if takes_standbys { OF_STANDBYS } else { 0 };
    let bounded = bounded(&limits, may_be_open, reserve);
    if bounded != limits {
        let (open, taken) = (grouped(may_be_open), bounded.connections_max);
        let text = format!(
            "the process may open {open} files, so the server takes {taken} connections at once instead of the {} configured, and {} of \
             one address. For more, set LimitNOFILE=65536 in the systemd unit, or run `ulimit -Hn 65536` before the start",
            limits.connections_max, bounded.connections_per_peer_max
        );
        server_output::say(Line::warning("open_files", text).with("connections_max", taken));
    }
    bounded
}

/// One address keeps its share. Where next to nothing is left, connections get a quarter.
fn bounded(limits: &ConnectionLimits, may_be_open: u64, reserve: u64) -> ConnectionLimits {
    let left = may_be_open.saturating_sub(reserve).max(may_be_open / 4).max(1);
    let connections_max = u32::try_from(left).unwrap_or(u32::MAX).min(limits.connections_max);
    let share = u64::from(limits.connections_per_peer_max) * u64::from(connections_max);
    let per_peer_max = share.div_ceil(u64::from(limits.connections_max.max(1)));
    ConnectionLimits {
        connections_max,
        connections_per_peer_max: u32::try_from(per_peer_max).unwrap_or(u32::MAX),
        ..*limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_never_get_the_descriptors_of_files() {
        let limits = ConnectionLimits::default();
        let of = |may_be_open: u64, reserve: u64| {
            let bounded = bounded(&limits, may_be_open, reserve);
            (bounded.connections_max, bounded.connections_per_peer_max)
        };
        let all = (limits.connections_max, limits.connections_per_peer_max);
        for enough in [u64::from(all.0) + OWN, 1 << 20, u64::MAX] {
            assert_eq!(of(enough, OWN), all);
        }
        assert_eq!(of(1_024, OWN), (768, 384));
        assert_eq!(of(1_024, OWN + OF_STANDBYS), (512, 256));
        assert_eq!(of(256, OWN), (64, 32));
        assert_eq!(of(0, OWN), (1, 1));
    }
}

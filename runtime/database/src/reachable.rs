//! The address at which standbys reach a listening primary.

use core::net::SocketAddr;

/// Returns the address of a listener, as others reach it. A listener on all addresses has none that could be published.
pub(crate) fn reachable(address: &str, url: Option<&str>) -> String {
    let listening: Option<SocketAddr> = address.parse().ok();
    let everywhere = listening.filter(|at| at.ip().is_unspecified());
    let host = url.and_then(|url| url.split_once("://")).map(|(_, rest)| {
        let authority = rest.split('/').next().unwrap_or_default();
        match authority.rfind(':').filter(|at| !authority[*at..].contains(']')) {
            Some(port) => &authority[..port],
            None => authority,
        }
    });
    match (everywhere, host) {
        (Some(at), Some(host)) if !host.is_empty() => format!("{host}:{}", at.port()),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::reachable;

    #[test]
    fn server_on_all_addresses_is_found_at_its_clients_address() {
        let cases = [
            ("127.0.0.1:7", Some("http://db.example:80"), "127.0.0.1:7"),
            ("0.0.0.0:7", Some("http://db.example:80/x"), "db.example:7"),
            ("0.0.0.0:7", Some("https://db.example"), "db.example:7"),
            ("[::]:7", Some("http://[fe80::1]:80"), "[fe80::1]:7"),
            ("[::]:7", Some("http://[fe80::1]"), "[fe80::1]:7"),
            ("0.0.0.0:7", Some("nonsense"), "0.0.0.0:7"),
            ("0.0.0.0:7", None, "0.0.0.0:7"),
            ("a:1", None, "a:1"),
        ];
        for (address, url, expected) in cases {
            assert_eq!(reachable(address, url), expected);
        }
    }
}

//! Lines about a certificate that ends soon, or does not hold: clients refuse such a server, and nothing else of it shows that.

use std::sync::Arc;

use reprise_net_tls::{Identity, Validity};

use crate::server_output;

const DAY_S: i64 = 86_400;
/// Days before its end from which on a certificate gets a line each day.
const SOON_DAYS: i64 = 14;

/// Checks the certificate that this server shows. It warns once a day.
pub struct CertificateWatch {
    own: Option<Arc<Identity>>,
    /// The days that were left, as the last line said.
    reported_days: Option<i64>,
}

impl CertificateWatch {
    pub fn new(own: Option<Arc<Identity>>) -> Self {
        Self {
            own,
            reported_days: None,
        }
    }

    pub fn warn_if_near(&mut self) {
        let Some(validity) = self.own.as_ref().and_then(|own| own.validity()) else {
            return;
        };
        let text = warning(&validity, validity.left_s());
        let days = text.is_some().then(|| validity.left_s().div_euclid(DAY_S));
        if let Some(text) = text.filter(|_| days != self.reported_days) {
            server_output::warning("certificate", text);
        }
        self.reported_days = days;
    }
}

/// Returns the warning about a certificate that is valid for `left_s` more seconds, if it needs one.
fn warning(validity: &Validity, left_s: i64) -> Option<String> {
    let mend = "Replace the certificate file, and send SIGHUP";
    if let Some(why) = validity.refusal() {
        return Some(format!("the certificate {why}, and clients refuse it. {mend}"));
    }
    let days = left_s.div_euclid(DAY_S);
    (days < SOON_DAYS).then(|| format!("the certificate expires in {days} days, and clients then refuse it. {mend}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_comes_when_the_end_is_near_or_past() {
        let holds = Validity {
            from_s: 0,
            until_s: i64::MAX,
        };
        assert_eq!(warning(&holds, SOON_DAYS * DAY_S), None);
        let text = warning(&holds, SOON_DAYS * DAY_S - 1).expect("soon");
        assert!(text.starts_with("the certificate expires in 13 days"), "{text}");
        let over = Validity { from_s: 0, until_s: 1 };
        assert!(warning(&over, -1).is_some_and(|text| text.contains("is expired: it ended ")));
    }
}

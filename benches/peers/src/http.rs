//! Calls of Reprise in HTTP/1.1: one a request, or many in a batch.

use std::io::Write as _;

use anyhow::{Result, bail, ensure};
use memchr::memmem;

use crate::{
    calls::{Booking, Call, Outcome, VOTES_PER_PHONE_MAX},
    load::{Way, Wire},
    orders::{Line, Order},
};

const HEADERS_MAX: usize = 32;
/// Bytes of an answer that an error shows.
const SHOWN_MAX: usize = 300;

/// The language of one connection to Reprise.
pub struct HttpWire {
    is_batch: bool,
    /// Head of a request up to its length.
    head: Vec<u8>,
    /// First part of the idempotency keys, and the next one's number; none: calls have no keys.
    key: Option<(String, u64)>,
    module: &'static str,
    procedure: &'static str,
    body: Vec<u8>,
}

impl HttpWire {
    /// `keys` makes the keys of this connection differ from all others.
    pub fn new(address: &str, names: [&'static str; 2], way: Way, keys: String) -> Self {
        let [module, procedure] = names;
        let is_batch = way == Way::Batches;
        let (path, media_type) = match is_batch {
            true => ("/v1/batch".to_owned(), "application/x-ndjson"),
            false => (format!("/v1/call/{module}/{procedure}"), "application/json"),
        };
        let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {media_type}\r\nContent-Length: ");
        Self {
            is_batch,
            head: head.into_bytes(),
            key: (way == Way::Keyed).then_some((keys, 0)),
            module,
            procedure,
            body: Vec::new(),
        }
    }

    /// Appends a request with the body that was made.
    fn push_request(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        push_number(out, self.body.len() as i64);
        out.extend_from_slice(b"\r\n");
        if let Some((keys, next)) = &mut self.key {
            let _ = write!(out, "Idempotency-Key: {keys}-{next:012}\r\n"); // memory takes all
            *next += 1;
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body);
    }

    fn outcomes_of(&self, status: u16, body: &[u8], outcomes: &mut Vec<Outcome>) -> Result<()> {
        if !self.is_batch {
            outcomes.push(outcome(status, body)?);
            return Ok(());
        }
        ensure!(status == 200, "a batch was answered with {status}: {}", shown(body));
        let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for line in lines {
            let status = if line.starts_with(b"{\"result\":") { 200 } else { 0 };
            outcomes.push(outcome(status, line)?);
        }
        Ok(())
    }
}

impl Wire for HttpWire {
    fn ask(&mut self, calls: &[Call], out: &mut Vec<u8>) {
        if !self.is_batch {
            for call in calls {
                self.body.clear();
                push_args(call, &mut self.body);
                self.push_request(out);
            }
            return;
        }
        self.body.clear();
        for call in calls {
            let (module, procedure) = (self.module, self.procedure);
            let _ = write!(
                self.body,
                "{{\"module\":\"{module}\",\"procedure\":\"{procedure}\",\"args\":"
            ); // memory takes all
            push_args(call, &mut self.body);
            self.body.extend_from_slice(b"}\n");
        }
        self.push_request(out);
    }

    fn read(&mut self, received: &[u8], outcomes: &mut Vec<Outcome>) -> Result<usize> {
        let mut used = 0;
        while used < received.len() {
            let Some(answer) = parse(&received[used..])? else {
                break;
            };
            self.outcomes_of(answer.status, &answer.body, outcomes)?;
            used += answer.bytes;
        }
        Ok(used)
    }
}

/// An answer that arrived whole.
struct Answer<'a> {
    status: u16,
    body: std::borrow::Cow<'a, [u8]>,
    /// Its length on the wire.
    bytes: usize,
}

/// The answer at the beginning of these bytes; none: it has not arrived whole.
fn parse(received: &[u8]) -> Result<Option<Answer<'_>>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(begin) = head.parse(received)? else {
        return Ok(None);
    };
    let status = head.code.unwrap_or_default();
    let header = |name: &str| {
        let mut headers = head.headers.iter();
        headers
            .find(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value)
    };
    if header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case(b"chunked")) {
        let Some((body, end)) = join_chunks(received, begin)? else {
            return Ok(None);
        };
        return Ok(Some(Answer {
            status,
            body: body.into(),
            bytes: end,
        }));
    }
    let length = header("content-length").and_then(|value| std::str::from_utf8(value).ok()?.parse::<usize>().ok());
    let Some(length) = length else {
        bail!("an answer without a length");
    };
    let body = received.get(begin..begin + length);
    Ok(body.map(|body| Answer {
        status,
        body: body.into(),
        bytes: begin + length,
    }))
}

/// The body in chunks from `at` on, and where it ends; none: it has not arrived whole.
fn join_chunks(received: &[u8], mut at: usize) -> Result<Option<(Vec<u8>, usize)>> {
    let mut body = Vec::new();
    loop {
        let size = httparse::parse_chunk_size(&received[at..]);
        let Ok(size) = size else {
            bail!("a chunk without a size");
        };
        let httparse::Status::Complete((digits, size)) = size else {
            return Ok(None);
        };
        let begin = at + digits;
        let end = begin + size as usize;
        let Some(data) = received.get(begin..end + 2) else {
            return Ok(None);
        };
        body.extend_from_slice(&data[..size as usize]);
        at = end + 2;
        if size == 0 {
            return Ok(Some((body, at)));
        }
    }
}

fn outcome(status: u16, body: &[u8]) -> Result<Outcome> {
    let has = |text: &str| memmem::find(body, text.as_bytes()).is_some();
    match status {
        200 if has("\"invalid_contestant\"") || has("\"over_limit\"") => Ok(Outcome::Rejected),
        200 => Ok(Outcome::Done),
        _ if has("\"insufficient_funds\"") || has("\"item_not_found\"") => Ok(Outcome::Rejected),
        _ => bail!("a call was answered with {status}: {}", shown(body)),
    }
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(SHOWN_MAX)]).into_owned()
}

/// Appends the arguments as an object.
fn push_args(call: &Call, out: &mut Vec<u8>) {
    match *call {
        Call::Vote { phone, contestant } => {
            push_member(out, "{\"phone_number\":", phone);
            push_member(out, ",\"contestant_number\":", contestant.into());
            push_member(out, ",\"max_votes_per_phone\":", VOTES_PER_PHONE_MAX);
        }
        Call::Transfer { payer, payee, amount } => {
            push_member(out, "{\"from\":", payer);
            push_member(out, ",\"to\":", payee);
            push_member(out, ",\"amount\":", amount);
        }
        Call::Book(Booking {
            branch,
            teller,
            account_branch,
            account,
            delta,
        }) => {
            push_member(out, "{\"branch_id\":", branch.into());
            push_member(out, ",\"teller_id\":", teller.into());
            push_member(out, ",\"account_branch_id\":", account_branch.into());
            push_member(out, ",\"account_id\":", account.into());
            push_member(out, ",\"delta\":", delta);
        }
        Call::Order(ref order) => {
            push_member(out, "{\"w_id\":", order.warehouse.into());
            push_member(out, ",\"d_id\":", order.district.into());
            push_member(out, ",\"c_id\":", order.customer.into());
            push_list(out, ",\"i_ids\":[", order, |line| line.item.into());
            push_list(out, ",\"supply_w_ids\":[", order, |line| line.supplier.into());
            push_list(out, ",\"quantities\":[", order, |line| line.quantity.into());
        }
    }
    out.push(b'}');
}

fn push_member(out: &mut Vec<u8>, name: &str, value: i64) {
    out.extend_from_slice(name.as_bytes());
    push_number(out, value);
}

/// Appends a list with a number of each line.
fn push_list(out: &mut Vec<u8>, name: &str, order: &Order, value: impl Fn(&Line) -> i64) {
    out.extend_from_slice(name.as_bytes());
    for (at, line) in order.lines().iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_number(out, value(line));
    }
    out.push(b']');
}

/// Appends a number in decimal.
pub fn push_number(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads these bytes in pieces that grow by one; the outcomes.
    fn check_read(way: Way, bytes: &[u8]) -> Result<Vec<Outcome>> {
        let mut wire = HttpWire::new("a:1", ["voter", "vote"], way, "k".into());
        let (mut outcomes, mut received) = (Vec::new(), Vec::new());
        for byte in bytes {
            received.push(*byte);
            let used = wire.read(&received, &mut outcomes)?;
            received.drain(..used);
        }
        assert!(received.is_empty(), "{}", shown(&received));
        Ok(outcomes)
    }

    #[test]
    fn answers_are_read_however_they_are_cut() {
        let single = b"HTTP/1.1 200 OK\r\ncontent-length: 33\r\n\r\n{\"result\":{\"outcome\":\"accepted\"}}\
            HTTP/1.1 422 No\r\nContent-Length: 29\r\n\r\n{\"code\":\"insufficient_funds\"}";
        let outcomes = check_read(Way::Ahead, single).expect("two answers");
        assert_eq!(outcomes, [Outcome::Done, Outcome::Rejected]);
        let batch =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1c\r\n{\"result\":{}}\n{\"result\":{\"ou\r\n\
            16\r\ntcome\":\"over_limit\"}}\n\r\n0\r\n\r\n";
        let outcomes = check_read(Way::Batches, batch);
        assert!(outcomes.is_ok_and(|outcomes| outcomes == [Outcome::Done, Outcome::Rejected]));
        let failed = check_read(Way::Plain, b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy");
        assert!(failed.is_err_and(|error| error.to_string().contains("503: busy")));
    }

    #[test]
    fn requests_have_keys_where_they_were_asked_for() {
        let call = Call::Vote {
            phone: 2_125_550_123,
            contestant: 3,
        };
        let mut text = Vec::new();
        HttpWire::new("a:1", ["voter", "vote"], Way::Keyed, "run".into()).ask(&[call, call], &mut text);
        let text = String::from_utf8(text).expect("text");
        assert!(
            text.starts_with("POST /v1/call/voter/vote HTTP/1.1\r\nHost: a:1\r\n"),
            "{text}"
        );
        assert!(
            text.contains("Idempotency-Key: run-000000000000\r\n") && text.contains("run-000000000001"),
            "{text}"
        );
        assert!(text.ends_with("{\"phone_number\":2125550123,\"contestant_number\":3,\"max_votes_per_phone\":2}"));
    }
}

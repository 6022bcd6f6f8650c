//! The protocol of PostgreSQL (version 3): one prepared statement with binary arguments, and simple queries beside it.

use std::{io::Write, net::TcpStream};

use anyhow::{Context, Result, anyhow, bail};

use crate::{
    calls::{Call, Outcome, VOTES_PER_PHONE_MAX},
    load::Wire,
    orders::{Line, Order},
    server::SetupConnection,
};

/// Version 3.0 of the protocol.
const VERSION: i32 = 3 << 16;
/// Types of array elements, by PostgreSQL's numbers.
const INT2: i32 = 21;
const INT4: i32 = 23;
/// The error of a call that is taken back: an account without funds, an item that there is not (`sql/`).
const TAKEN_BACK: &str = "RP001";
/// Name of the prepared statement.
const STATEMENT: u8 = b's';
/// The user that `initdb` makes.
pub const USER: &str = "postgres";

/// A message of the server.
struct Message<'a> {
    kind: u8,
    body: &'a [u8],
    /// Its length on the wire.
    bytes: usize,
}

/// The message at the beginning of these bytes; none: it has not arrived whole.
fn parse(received: &[u8]) -> Option<Message<'_>> {
    let (kind, rest) = received.split_first()?;
    let length = i32::from_be_bytes(rest.first_chunk().copied()?);
    let length = usize::try_from(length).ok()?;
    Some(Message {
        kind: *kind,
        body: rest.get(4..length)?,
        bytes: 1 + length,
    })
}

/// Appends a message of this kind.
fn push_message(out: &mut Vec<u8>, kind: u8, push_body: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    push_body(out);
    let length = (out.len() - begin) as u32;
    out[begin..begin + 4].copy_from_slice(&length.to_be_bytes());
}

/// A member of an error: `C` is its code, `M` its message.
fn error_member(body: &[u8], member: u8) -> String {
    let mut members = body.split(|byte| *byte == 0);
    let found = members.find_map(|text| text.strip_prefix(&[member]));
    String::from_utf8_lossy(found.unwrap_or_default()).into_owned()
}

fn error(body: &[u8]) -> anyhow::Error {
    anyhow!(
        "PostgreSQL: {} ({})",
        error_member(body, b'M'),
        error_member(body, b'C')
    )
}

/// The first column of a row.
fn first_column(body: &[u8]) -> Option<&[u8]> {
    let length = i32::from_be_bytes(body.get(2..6)?.try_into().ok()?);
    body.get(6..6 + usize::try_from(length).ok()?)
}

/// The language of one connection, whose prepared statement is the workload's function.
pub struct PgWire {
    /// The function's answer is a number, which is not 0 if it rejected the call.
    answers_verdict: bool,
    /// Outcome of the call whose messages are arriving.
    pending: Option<Outcome>,
}

impl PgWire {
    pub fn new(answers_verdict: bool) -> Self {
        Self {
            answers_verdict,
            pending: None,
        }
    }

    fn outcome_of_row(&self, body: &[u8]) -> Outcome {
        let is_zero = || first_column(body).is_some_and(|column| column.iter().all(|byte| *byte == 0));
        match !self.answers_verdict || is_zero() {
            true => Outcome::Done,
            false => Outcome::Rejected,
        }
    }
}

fn push_arg<const N: usize>(out: &mut Vec<u8>, bytes: [u8; N]) {
    out.extend_from_slice(&(N as i32).to_be_bytes());
    out.extend_from_slice(&bytes);
}

/// Appends an array argument with a number of each line.
fn push_array<const N: usize>(out: &mut Vec<u8>, element_type: i32, order: &Order, bytes: impl Fn(&Line) -> [u8; N]) {
    let count = order.lines().len() as i32;
    let length = 20 + count * (4 + N as i32);
    // One dimension without nulls, whose first position is 1.
    for word in [length, 1, 0, element_type, count, 1] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    order.lines().iter().for_each(|line| push_arg(out, bytes(line)));
}

/// Appends the call's arguments, their number first.
fn push_args(call: &Call, out: &mut Vec<u8>) {
    let count: i16 = match call {
        Call::Vote { .. } | Call::Transfer { .. } => 3,
        Call::Book(_) => 4,
        Call::Order(_) => 6,
    };
    out.extend_from_slice(&count.to_be_bytes());
    match *call {
        Call::Vote { phone, contestant } => {
            push_arg(out, phone.to_be_bytes());
            push_arg(out, contestant.to_be_bytes());
            push_arg(out, VOTES_PER_PHONE_MAX.to_be_bytes());
        }
        Call::Transfer { payer, payee, amount } => {
            for value in [payer, payee, amount] {
                push_arg(out, value.to_be_bytes());
            }
        }
        Call::Book(booking) => {
            for value in [booking.branch, booking.teller, booking.account] {
                push_arg(out, value.to_be_bytes());
            }
            push_arg(out, booking.delta.to_be_bytes());
        }
        Call::Order(ref order) => {
            push_arg(out, order.warehouse.to_be_bytes());
            push_arg(out, order.district.to_be_bytes());
            push_arg(out, order.customer.to_be_bytes());
            push_array(out, INT4, order, |line| line.item.to_be_bytes());
            push_array(out, INT2, order, |line| line.supplier.to_be_bytes());
            push_array(out, INT2, order, |line| line.quantity.to_be_bytes());
        }
    }
}

impl Wire for PgWire {
    fn ask(&mut self, calls: &[Call], out: &mut Vec<u8>) {
        for call in calls {
            push_message(out, b'B', |out| {
                // A portal without a name; all arguments and results are binary.
                out.extend_from_slice(&[0, STATEMENT, 0, 0, 1, 0, 1]);
                push_args(call, out);
                out.extend_from_slice(&[0, 1, 0, 1]);
            });
            push_message(out, b'E', |out| out.extend_from_slice(&[0; 5]));
            // Ends the transaction: calls that are sent together are as many transactions.
            push_message(out, b'S', |_| {});
        }
    }

    fn read(&mut self, received: &[u8], outcomes: &mut Vec<Outcome>) -> Result<usize> {
        let mut used = 0;
        while let Some(message) = parse(&received[used..]) {
            used += message.bytes;
            match message.kind {
                b'D' => self.pending = Some(self.outcome_of_row(message.body)),
                b'E' if error_member(message.body, b'C') == TAKEN_BACK => self.pending = Some(Outcome::Rejected),
                b'E' => return Err(error(message.body)),
                b'Z' => outcomes.push(self.pending.take().context("a call without a row")?),
                _ => {} // notices, and that a step is complete
            }
        }
        Ok(used)
    }
}

/// A connection for simple queries, which becomes one for calls.
pub struct PgClient(SetupConnection);

impl PgClient {
    pub fn connect(port: u16) -> Result<Self> {
        let mut client = Self(SetupConnection::open(port)?);
        let mut body = VERSION.to_be_bytes().to_vec();
        for text in ["user", USER, "database", USER, ""] {
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
        let length = (body.len() + 4) as i32;
        client.0.stream.write_all(&length.to_be_bytes())?;
        client.0.stream.write_all(&body)?;
        client.wait()?;
        Ok(client)
    }

    /// Runs statements without arguments; the first columns of the rows, as text.
    ///
    /// # Errors
    /// The connection failed, or the server refused a statement.
    pub fn query(&mut self, sql: &str) -> Result<Vec<String>> {
        let mut request = Vec::new();
        push_message(&mut request, b'Q', |out| {
            out.extend_from_slice(sql.as_bytes());
            out.push(0);
        });
        self.0.stream.write_all(&request)?;
        self.wait()
    }

    /// Prepares the statement of the calls; the connection is theirs then.
    ///
    /// # Errors
    /// The connection failed, or the server refused the statement.
    pub fn prepare(mut self, sql: &str) -> Result<TcpStream> {
        let mut request = Vec::new();
        push_message(&mut request, b'P', |out| {
            out.extend_from_slice(&[STATEMENT, 0]);
            out.extend_from_slice(sql.as_bytes());
            out.extend_from_slice(&[0, 0, 0]);
        });
        push_message(&mut request, b'S', |_| {});
        self.0.stream.write_all(&request)?;
        self.wait()?;
        Ok(self.0.stream)
    }

    /// Reads until the server is ready for the next request.
    fn wait(&mut self) -> Result<Vec<String>> {
        let (mut columns, mut failed) = (Vec::new(), None);
        loop {
            while let Some(message) = parse(&self.0.received) {
                let bytes = message.bytes;
                match message.kind {
                    b'R' if message.body != [0; 4] => bail!("PostgreSQL asks for a password"),
                    b'D' => {
                        let text = first_column(message.body).unwrap_or_default();
                        columns.push(String::from_utf8_lossy(text).into_owned());
                    }
                    b'E' => failed = Some(error(message.body)),
                    b'Z' => {
                        self.0.received.drain(..bytes);
                        return failed.map_or(Ok(columns), Err);
                    }
                    _ => {}
                }
                self.0.received.drain(..bytes);
            }
            if !self.0.receive()? {
                return Err(failed.unwrap_or_else(|| anyhow!("PostgreSQL closed the connection")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Booking;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        push_message(&mut out, kind, |out| out.extend_from_slice(body));
        out
    }

    /// Reads these messages byte by byte; the outcomes.
    fn check_read(answers_verdict: bool, messages: &[Vec<u8>]) -> Result<Vec<Outcome>> {
        let mut wire = PgWire::new(answers_verdict);
        let (mut outcomes, mut received) = (Vec::new(), Vec::new());
        for byte in messages.concat() {
            received.push(byte);
            let used = wire.read(&received, &mut outcomes)?;
            received.drain(..used);
        }
        assert!(received.is_empty());
        Ok(outcomes)
    }

    #[test]
    fn answers_are_read_however_they_are_cut() {
        let row = |number: u8| message(b'D', &[0, 1, 0, 0, 0, 4, 0, 0, 0, number]);
        let ready = || message(b'Z', b"I");
        let insufficient = message(b'E', b"SERROR\0CRP001\0Mno\0\0");
        let messages = [
            message(b'2', b""),
            row(0),
            message(b'C', b"SELECT 1\0"),
            ready(),
            row(1),
            ready(),
        ];
        let outcomes = check_read(true, &messages).expect("two answers");
        assert_eq!(outcomes, [Outcome::Done, Outcome::Rejected]);
        let outcomes = check_read(false, &[row(1), ready(), insufficient, ready()]).expect("two answers");
        assert_eq!(outcomes, [Outcome::Done, Outcome::Rejected]);
        assert!(check_read(false, &[ready()]).is_err(), "no row");
        let failed = check_read(false, &[message(b'E', b"C40P01\0Mdeadlock\0\0")]).expect_err("an error");
        assert_eq!(failed.to_string(), "PostgreSQL: deadlock (40P01)");
    }

    #[test]
    fn arguments_are_counted_as_they_are_sent() {
        let booking = Booking {
            branch: 1,
            teller: 2,
            account_branch: 1,
            account: 3,
            delta: -4,
        };
        let mut out = Vec::new();
        push_args(&Call::Book(booking), &mut out);
        assert_eq!(out.len(), 2 + 3 * 8 + 12);
        assert_eq!(out[..2], [0, 4]);
    }
}

//! Clients of the real server.

use reprise_base::TxnId;
use reprise_test_crash::Connection;
use serde_json::{Value, json};

use crate::{
    client::Client,
    op::{Op, Ret},
};

/// A client over one kept connection; a call at a time.
pub struct Http(pub Connection);

impl Client for Http {
    fn call(&mut self, ops: &[Op]) -> Vec<(Ret, TxnId)> {
        ops.iter().map(|op| self.call_one(op)).collect()
    }
}

impl Http {
    fn call_one(&mut self, op: &Op) -> (Ret, TxnId) {
        let args = match op {
            Op::All => json!({}),
            Op::Read(ids) | Op::Rotate(ids) => json!({ "ids": ids }),
            Op::Write { ids, values, abort } => {
                json!({ "ids": ids, "values": values, "abort": abort })
            }
        };
        let path = format!("/v1/call/registers/{}", op.procedure());
        let answer = self.0.request("POST", &path, &[], args.to_string().as_bytes());
        let answer = answer.expect("a whole answer");
        let (status, body) = (answer.status, answer.json());
        let txn_id = number(&body["txn_id"]).map_or(TxnId(0), |id| TxnId(id as u64));
        match status {
            200 => (ret_of(op, &body["result"]), txn_id),
            422 if body["type"] == "/problems/procedure-aborted" => (Ret::Aborted, txn_id),
            _ => panic!("{op:?} was answered with {status}: {body}"),
        }
    }
}

fn ret_of(op: &Op, result: &Value) -> Ret {
    let items = result.as_array().expect("a list");
    match op {
        Op::All => {
            let member = |item: &Value, name: &str| number(&item[name]).expect("a number");
            let row = |item: &Value| (member(item, "id"), member(item, "value"));
            Ret::Rows(items.iter().map(row).collect())
        }
        _ => Ret::Values(items.iter().map(number).collect()),
    }
}

/// 64-bit numbers come as text.
fn number(value: &Value) -> Option<i64> {
    let text = value.as_str().and_then(|text| text.parse().ok());
    text.or_else(|| value.as_i64())
}

//! Arguments of each kind of call, drawn from one stream.

use reprise_abi::value::push_varint;
use reprise_procedure::native::NativeModule;

/// A transaction that can be counted, and what fills its tables.
pub struct Kind {
    pub procedure: &'static str,
    pub module: &'static NativeModule,
    pub load: fn() -> Vec<(&'static str, Vec<u8>)>,
    pub draw: fn(&mut Inputs) -> Vec<u8>,
}

/// Returns the calls of a run of `name`: the share of each kind.
pub fn shares(name: &str) -> Option<Vec<(u32, &'static Kind)>> {
    let of = |name: &str| KINDS.iter().find(|kind| kind.procedure == name);
    if name == "tpcc_mix" {
        let mix = TPCC_MIX.iter();
        return mix.map(|&(share, name)| Some((share, of(name)?))).collect();
    }
    Some(vec![(1, of(name)?)])
}

/// TPC-C, 5.2.3: the shares that the driver aims at, in percent.
const TPCC_MIX: [(u32, &str); 5] = [
    (45, "new_order"),
    (43, "payment"),
    (4, "order_status"),
    (4, "delivery"),
    (4, "stock_level"),
];

const fn kind(
    procedure: &'static str,
    module: &'static NativeModule,
    load: fn() -> Vec<(&'static str, Vec<u8>)>,
    draw: fn(&mut Inputs) -> Vec<u8>,
) -> Kind {
    Kind {
        procedure,
        module,
        load,
        draw,
    }
}

pub static KINDS: [Kind; 9] = [
    kind("new_order", &tpcc::MODULE, warehouse, Inputs::new_order),
    kind("payment", &tpcc::MODULE, warehouse, Inputs::payment),
    kind("delivery", &tpcc::MODULE, warehouse, Inputs::delivery),
    kind("order_status", &tpcc::MODULE, warehouse, Inputs::order_status),
    kind("stock_level", &tpcc::MODULE, warehouse, Inputs::stock_level),
    kind("vote", &voter::MODULE, contestants, Inputs::vote),
    kind("account_update", &tpcb::MODULE, branch, Inputs::account_update),
    kind(
        "get_subscriber_data",
        &tatp::MODULE,
        subscribers,
        Inputs::subscriber_data,
    ),
    kind("update_location", &tatp::MODULE, subscribers, Inputs::location),
];

const SUBSCRIBERS: i32 = 20_000;

/// Values one after the other, as `reprise_abi::value` has them.
#[derive(Default)]
struct Args(Vec<u8>);

impl Args {
    fn i8(mut self, value: i8) -> Self {
        self.0.push(value as u8);
        self
    }
    fn i16(mut self, value: i16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn i32(mut self, value: i32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn i64(mut self, value: i64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn count(mut self, count: usize) -> Self {
        push_varint(&mut self.0, count as u32);
        self
    }
    fn text(self, text: &str) -> Self {
        let mut args = self.count(text.len());
        args.0.extend(text.as_bytes());
        args
    }
}

fn warehouse() -> Vec<(&'static str, Vec<u8>)> {
    let items = Args::default().i32(1).i32(tpcc::ITEMS);
    let parts = (1..=tpcc::DISTRICTS).map(|part| Args::default().i16(1).i8(part).0);
    let mut calls = vec![("load_item_range", items.0)];
    calls.extend(parts.map(|args| ("load_warehouse", args)));
    calls
}

fn contestants() -> Vec<(&'static str, Vec<u8>)> {
    let names = ["Ada", "Bruno", "Chiara", "Dmitri", "Esther", "Farid"];
    let args = Args::default().count(names.len());
    vec![("initialize", names.iter().fold(args, |args, name| args.text(name)).0)]
}

fn branch() -> Vec<(&'static str, Vec<u8>)> {
    let count = tpcb::LOADED_ACCOUNTS_MAX;
    let accounts = (0..tpcb::ACCOUNTS_PER_BRANCH).step_by(count as usize);
    let mut calls = vec![("load_branch", Args::default().i32(1).0)];
    calls.extend(accounts.map(|from| ("load_accounts", Args::default().i32(1).i32(from).i32(count).0)));
    calls
}

fn subscribers() -> Vec<(&'static str, Vec<u8>)> {
    (1..=SUBSCRIBERS)
        .map(|s_id| ("load_subscriber", Args::default().i32(s_id).0))
        .collect()
}

/// The stream of draws.
pub struct Inputs {
    state: u64,
    /// Items that orders name: a hundredth of them, or all.
    items: i32,
}

impl Inputs {
    pub fn new(is_narrow: bool) -> Self {
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
            items: tpcc::ITEMS / if is_narrow { 100 } else { 1 },
        }
    }

    pub fn below(&mut self, end: u32) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        ((self.state >> 32) * end as u64 >> 32) as u32
    }

    fn customer(&mut self) -> i32 {
        1 + ((self.below(1_024) | self.below(tpcc::CUSTOMERS as u32)) + 77) as i32 % tpcc::CUSTOMERS
    }

    fn new_order(&mut self) -> Vec<u8> {
        let (d_id, c_id) = (1 + self.below(10) as i8, self.customer());
        let count = 5 + self.below(11) as usize;
        let mut args = Args::default().i16(1).i8(d_id).i32(c_id).count(count);
        for _ in 0..count {
            let drawn = (self.below(8_192) | self.below(100_000)) + 77;
            args = args.i32(1 + drawn as i32 % self.items);
        }
        args = (0..count).fold(args.count(count), |args, _| args.i16(1));
        args = args.count(count);
        for _ in 0..count {
            args = args.i8(1 + self.below(10) as i8);
        }
        args.0
    }

    /// By number of two in five, else by last name.
    fn named(&mut self, args: Args) -> Args {
        if self.below(100) >= 60 {
            return args.i8(1).i32(self.customer()).i8(0);
        }
        let number = (self.below(256) | self.below(1_000)) + 77;
        let name = tpcc::last_name(number % 1_000);
        args.i8(0).i8(1).text(name.as_str())
    }

    fn payment(&mut self) -> Vec<u8> {
        let d_id = 1 + self.below(10) as i8;
        let args = Args::default().i16(1).i8(d_id).i16(1).i8(d_id);
        let amount = 100 + self.below(499_901) as i64;
        self.named(args).i64(amount).0
    }

    fn delivery(&mut self) -> Vec<u8> {
        Args::default().i16(1).i8(1 + self.below(10) as i8).0
    }

    fn order_status(&mut self) -> Vec<u8> {
        let args = Args::default().i16(1).i8(1 + self.below(10) as i8);
        self.named(args).0
    }

    fn stock_level(&mut self) -> Vec<u8> {
        let d_id = 1 + self.below(10) as i8;
        Args::default().i16(1).i8(d_id).i16(10 + self.below(11) as i16).0
    }

    fn vote(&mut self) -> Vec<u8> {
        let phone = 2_010_000_000 + (self.state >> 20) as i64 % 2_000_000_000;
        let contestant = 1 + self.below(6) as i32;
        Args::default().i64(phone).i32(contestant).i64(2).0
    }

    fn account_update(&mut self) -> Vec<u8> {
        let (teller, account) = (1 + self.below(10) as i32, 1 + self.below(100_000) as i32);
        let delta = self.below(2_000_000) as i64 - 1_000_000;
        Args::default().i32(1).i32(teller).i32(1).i32(account).i64(delta).0
    }

    fn subscriber_data(&mut self) -> Vec<u8> {
        Args::default().i32(1 + self.below(SUBSCRIBERS as u32) as i32).0
    }

    fn location(&mut self) -> Vec<u8> {
        let s_id = 1 + self.below(SUBSCRIBERS as u32) as i32;
        Args::default()
            .i32(s_id)
            .text(&format!("{s_id:015}"))
            .i32(self.below(1 << 30) as i32)
            .0
    }
}

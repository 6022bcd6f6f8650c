#!lua name=peers

-- The state of each area code (filled in when the library is loaded).
local states = STATES

local function vote(keys, args)
  local contestant = args[1]
  if redis.call('HEXISTS', 'contestants', contestant) == 0 then
    return 'rejected'
  end
  if redis.call('LLEN', keys[1]) >= tonumber(args[2]) then
    return 'rejected'
  end
  local area = string.sub(keys[1], 3, 5)
  redis.call('RPUSH', keys[1], contestant .. ' ' .. states[area])
  redis.call('HINCRBY', 'vote_counts', contestant .. ':' .. area, 1)
  return 0
end

local function transfer(keys, args)
  if tonumber(redis.call('GET', keys[1])) < tonumber(args[1]) then
    return 'rejected'
  end
  local payer = redis.call('DECRBY', keys[1], args[1])
  local payee = redis.call('INCRBY', keys[2], args[1])
  return {payer, payee}
end

local function account_update(keys, args)
  local balance = redis.call('HINCRBY', keys[1], 'balance', args[1])
  redis.call('HINCRBY', keys[2], 'balance', args[1])
  redis.call('HINCRBY', keys[3], 'balance', args[1])
  local now = redis.call('TIME')
  local row = {keys[2], keys[1], args[1], now[1], now[2], '------------------'}
  redis.call('RPUSH', keys[4], table.concat(row, ' '))
  return balance
end

-- Rows are hashes. Keys join numbers: a district is its warehouse's hundred, a customer its district's ten thousand.
-- Nothing is taken back, so all items are looked up before the first change.
local function place_order(keys, args)
  local warehouse, count = args[1], (#args - 1) / 3
  local prices, total = {}, 0
  for line = 1, count do
    local item = redis.call('HMGET', 'item:' .. args[line * 3 - 1], 'price', 'name', 'data')
    if not item[1] then
      return 'rejected'
    end
    prices[line] = tonumber(item[1])
  end
  local warehouse_tax = redis.call('HGET', keys[1], 'tax')
  local district_tax = redis.call('HGET', keys[2], 'tax')
  local district = string.sub(keys[2], 10)
  local order_id = redis.call('HINCRBY', keys[2], 'next', 1) - 1
  local customer = redis.call('HMGET', keys[3], 'discount', 'last', 'credit')
  local now = redis.call('TIME')
  local order = district .. ':' .. order_id
  local is_local = 1
  for line = 1, count do
    local item, supplier, quantity = args[line * 3 - 1], args[line * 3], args[line * 3 + 1]
    local stock = 'stock:' .. supplier .. ':' .. item
    local dist = 'dist' .. tonumber(string.sub(district, -2))
    local held = redis.call('HMGET', stock, 'quantity', 'ytd', 'order_cnt', 'remote_cnt', dist, 'data')
    local left = held[1] - quantity
    if left < 10 then
      left = left + 91
    end
    local is_remote = 0
    if supplier ~= warehouse then
      is_remote, is_local = 1, 0
    end
    redis.call('HSET', stock, 'quantity', left, 'ytd', held[2] + quantity, 'order_cnt', held[3] + 1,
      'remote_cnt', held[4] + is_remote)
    local amount = quantity * prices[line]
    total = total + amount
    local row = {line, item, supplier, quantity, amount, held[5]}
    redis.call('RPUSH', 'order_line:' .. order, table.concat(row, ' '))
  end
  redis.call('HSET', 'order:' .. order, 'customer', keys[3], 'entry', now[1], 'lines', count, 'local', is_local)
  redis.call('RPUSH', 'new_order:' .. district, order_id)
  redis.call('RPUSH', 'orders_of:' .. keys[3], order_id)
  local factor = (10000 - customer[1]) * (10000 + warehouse_tax + district_tax)
  return math.floor((total * factor + 50000000) / 100000000)
end

-- Opens accounts from the first to the last, with a balance each.
local function open(keys, args)
  for account = tonumber(args[1]), tonumber(args[2]) do
    redis.call('SET', 'a:' .. string.format('%d', account), args[3])
  end
  return {}
end

-- Opens rows of TPC-B from the first to the last.
local function open_rows(prefix, length)
  return function(keys, args)
    for row = tonumber(args[1]), tonumber(args[2]) do
      redis.call('HSET', prefix .. string.format('%d', row), 'balance', 0, 'filler', string.rep('-', length))
    end
    return {}
  end
end

local function check_votes(keys, args)
  local counted, stored = 0, 0
  for _, votes in ipairs(redis.call('HVALS', 'vote_counts')) do
    counted = counted + votes
  end
  for _, phone in ipairs(redis.call('KEYS', 'v:*')) do
    stored = stored + redis.call('LLEN', phone)
  end
  return {counted, stored}
end

-- Counts and sums the accounts from 0 up to a number of them.
local function check_accounts(keys, args)
  local accounts, sum = 0, 0
  for account = 0, tonumber(args[1]) - 1 do
    local balance = redis.call('GET', 'a:' .. string.format('%d', account))
    if balance then
      accounts, sum = accounts + 1, sum + balance
    end
  end
  return {accounts, string.format('%.0f', sum)}
end

local function open_items(keys, args)
  for item = tonumber(args[1]), tonumber(args[2]) do
    redis.call('HSET', 'item:' .. string.format('%d', item), 'price', 100 + item % 9901,
      'name', string.rep('n', 19), 'data', string.rep('d', 38))
  end
  return {}
end

local function open_warehouse(keys, args)
  redis.call('HSET', 'warehouse:' .. args[1], 'tax', args[1] * 37 % 2001, 'filler', string.rep('-', 80))
  return {}
end

-- The district's key, its first order, its customers.
local function open_district(keys, args)
  local district = tonumber(args[1])
  redis.call('HSET', 'district:' .. args[1], 'tax', district % 100 * 41 % 2001, 'next', args[2],
    'filler', string.rep('-', 80))
  for customer = 1, tonumber(args[3]) do
    redis.call('HSET', 'customer:' .. string.format('%d', district * 10000 + customer), 'discount', customer % 5001,
      'last', 'BARBARBAR', 'credit', 'GC', 'filler1', string.rep('-', 125), 'filler2', string.rep('-', 125),
      'filler3', string.rep('-', 125), 'filler4', string.rep('-', 125))
  end
  return {}
end

-- Items from the first to the last, in a warehouse.
local function open_stock(keys, args)
  for item = tonumber(args[1]), tonumber(args[2]) do
    local row = {'quantity', 10 + item % 91, 'ytd', 0, 'order_cnt', 0, 'remote_cnt', 0, 'data', string.rep('d', 38)}
    for district = 1, 10 do
      row[#row + 1] = 'dist' .. district
      row[#row + 1] = string.rep('s', 24)
    end
    redis.call('HSET', 'stock:' .. args[3] .. ':' .. string.format('%d', item), unpack(row))
  end
  return {}
end

-- Warehouses, districts of each, items, the first order.
local function check_orders(keys, args)
  local numbered, orders, lines, units = 0, 0, 0, 0
  for warehouse = 1, tonumber(args[1]) do
    for number = 1, tonumber(args[2]) do
      local district = string.format('%d', warehouse * 100 + number)
      local last = redis.call('HGET', 'district:' .. district, 'next') - 1
      numbered = numbered + last + 1 - args[4]
      orders = orders + redis.call('LLEN', 'new_order:' .. district)
      for order = tonumber(args[4]), last do
        lines = lines + redis.call('LLEN', 'order_line:' .. district .. ':' .. order)
      end
    end
    for item = 1, tonumber(args[3]) do
      units = units + redis.call('HGET', string.format('stock:%d:%d', warehouse, item), 'ytd')
    end
  end
  return {numbered, orders, lines, units}
end

-- Sums the balances of rows from 1 up to a number of them.
local function sum_rows(prefix, count)
  local sum = 0
  for row = 1, count do
    sum = sum + redis.call('HGET', prefix .. string.format('%d', row), 'balance')
  end
  return string.format('%.0f', sum)
end

-- Branches, tellers of each, accounts of each.
local function check_bank(keys, args)
  local branches, rows = tonumber(args[1]), 0
  for branch = 1, branches do
    rows = rows + redis.call('LLEN', 'history:' .. string.format('%d', branch))
  end
  return {
    sum_rows('branch:', branches),
    sum_rows('teller:', branches * tonumber(args[2])),
    sum_rows('account:', branches * tonumber(args[3])),
    rows,
  }
end

redis.register_function('vote', vote)
redis.register_function('transfer', transfer)
redis.register_function('account_update', account_update)
redis.register_function('place_order', place_order)
redis.register_function('open', open)
redis.register_function('open_items', open_items)
redis.register_function('open_warehouse', open_warehouse)
redis.register_function('open_district', open_district)
redis.register_function('open_stock', open_stock)
redis.register_function('check_orders', check_orders)
redis.register_function('open_branches', open_rows('branch:', 84))
redis.register_function('open_tellers', open_rows('teller:', 80))
redis.register_function('open_accounts', open_rows('account:', 80))
redis.register_function('check_votes', check_votes)
redis.register_function('check_accounts', check_accounts)
redis.register_function('check_bank', check_bank)

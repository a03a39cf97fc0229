"""Script by which an account in Redis is looked at, reserved from and settled, in one step: account.py in Lua.

    no holder, no number    look
    holder                  reserve, if limits let it in (`check`)
    number                  news: what was taken, and what is held no more; a number that was there counts no more

Returned are which limit refused (0: none), for how many ms (-1: for good), what of it is left, whether running calls
hold it; what is held; and the 15 words of the account.
"""

from typing import Final

SCRIPT: Final = """
local key, alive = KEYS[1], KEYS[2]
local holder, sender, number = ARGV[1], ARGV[2], tonumber(ARGV[3])
local check, lease, kept = ARGV[4] == '1', tonumber(ARGV[5]), tonumber(ARGV[6])
local prompt, generated = tonumber(ARGV[7]), tonumber(ARGV[8])
local took, at = {}, 9
for word = 1, 8 do took[word] = tonumber(ARGV[at]); at = at + 1 end
local limits = {}
while ARGV[at] do
  table.insert(limits, {tonumber(ARGV[at]), tonumber(ARGV[at + 1]) + 1, tonumber(ARGV[at + 2])})
  at = at + 3
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local words, held_prompt, held_generated, sent = {}, 0, 0, 0
for word = 1, 15 do words[word] = 0 end
local found = redis.call('HGETALL', key)
for i = 1, #found, 2 do
  local name, value = found[i], found[i + 1]
  local kind = string.sub(name, 1, 2)
  if kind == 'w:' then
    local word = tonumber(string.sub(name, 3))
    if word and word >= 1 and word <= 15 then words[word] = tonumber(value) or 0 end
  elseif kind == 'p:' or kind == 'g:' or kind == 'n:' then
    local process = string.sub(name, 3)
    if process ~= holder and process ~= sender
      and redis.call('EXISTS', '{pdgate:tenants}:alive:' .. process) == 0 then
      redis.call('HDEL', key, name)
    elseif kind == 'p:' then held_prompt = held_prompt + (tonumber(value) or 0)
    elseif kind == 'g:' then held_generated = held_generated + (tonumber(value) or 0)
    elseif process == sender then sent = tonumber(value) or 0 end
  end
end
local passed = math.max(0, now - words[1])
words[1] = now
local spent = {0, 0, 0}
for _, limit in ipairs(limits) do
  if limit[1] == 0 then
    spent[limit[2]] = math.max(0, words[1 + limit[2]] - math.floor(limit[3] * passed / 60))
  end
end
for measure = 1, 3 do words[1 + measure] = spent[measure] end
local day = math.floor(now / 86400000)
if words[5] ~= day then
  words[5] = day
  for word = 6, 10 do words[word] = 0 end
end
local need = {prompt + generated, prompt, generated}
local refused, seconds, left, holds = 0, 0, 0, 0
if check then
  local holding = {held_prompt + held_generated, held_prompt, held_generated}
  for i, limit in ipairs(limits) do
    local window, measure, most = limit[1], limit[2], limit[3]
    local wanted = need[measure]
    if wanted > most then wanted = math.floor((most + 1) / 2) end
    local used
    if window == 0 then used = math.ceil(words[1 + measure] / 1000)
    else
      local first = window == 1 and 6 or 11
      local of = {words[first + 4] + words[first + 2], words[first + 4], words[first + 2]}
      used = of[measure]
    end
    left = most - used
    if window == 0 and wanted > left then
      refused, seconds = i, math.ceil((wanted - left) * 60000 / most)
    elseif window > 0 and wanted > left then
      refused, seconds = i, window == 1 and 86400000 - now % 86400000 or -1
    elseif window > 0 and wanted > left - holding[measure] then
      refused, seconds, left, holds = i, 1000, left - holding[measure], 1
    end
    if refused > 0 then break end
  end
end
if refused == 0 then
  if number == 0 or number > sent then
    for measure = 1, 3 do
      words[1 + measure] = math.min(math.max(0, words[1 + measure] + took[5 + measure]), 2^53)
    end
    for i = 1, 5 do
      words[5 + i] = math.min(words[5 + i] + took[i], 2^53)
      words[10 + i] = math.min(words[10 + i] + took[i], 2^53)
    end
    if number > 0 then redis.call('HSET', key, 'n:' .. sender, number) end
    if holder ~= '' then
      for _, limit in ipairs(limits) do
        if limit[1] == 0 and number == 0 then
          words[1 + limit[2]] = words[1 + limit[2]] + math.min(need[limit[2]], limit[3]) * 1000
        end
      end
      if prompt ~= 0 then redis.call('HINCRBY', key, 'p:' .. holder, prompt) end
      if generated ~= 0 then redis.call('HINCRBY', key, 'g:' .. holder, generated) end
      held_prompt, held_generated = held_prompt + prompt, held_generated + generated
    end
  end
  if number > 0 or holder ~= '' then
    for word = 1, 15 do redis.call('HSET', key, 'w:' .. word, string.format('%.0f', words[word])) end
    redis.call('PEXPIRE', key, kept)
  end
end
if holder ~= '' then redis.call('SET', alive, '1', 'PX', lease) end
if number > 0 then redis.call('SET', '{pdgate:tenants}:alive:' .. sender, '1', 'PX', lease) end
local answer = {refused, seconds, math.max(0, left), holds, held_prompt, held_generated}
for word = 1, 15 do table.insert(answer, string.format('%.0f', words[word])) end
return answer
"""
"""ARGV: who holds (empty: nothing is held), who sends news, its number (0: none); whether limits refuse; leases in ms;
what is held more (less, with news); what was taken: five words of account.TokensTaken and thousandths of three minutes; and
window, measure and most of each limit. Any client of the Redis can write there what it likes: what is no number is 0."""

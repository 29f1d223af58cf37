# The article's store for Rack::Attack: rows of a table of MySQL, here the lab's table of counters.
# A row stays until a job deletes it, as the article says, so times to live have no effect.
class TableStore
  # The new count comes back with the reply to the update, so no second statement reads it.
  COUNT = 'INSERT INTO counters (`key`, value) VALUES (?, LAST_INSERT_ID(?)) ' \
          'ON DUPLICATE KEY UPDATE value = LAST_INSERT_ID(value + ?)'.freeze
  READ = 'SELECT value FROM counters WHERE `key` = ?'.freeze
  WRITE = 'REPLACE INTO counters (`key`, value) VALUES (?, ?)'.freeze

  def initialize(connection)
    @count, @read, @write = [COUNT, READ, WRITE].map { |text| connection.prepare(text) }
  end

  def increment(key, amount = 1, _options = {})
    @count.execute(key, amount, amount)
    @count.last_id
  end

  def read(key, _options = {})
    row = @read.execute(key).first
    row && row['value']
  end

  def write(key, value, _options = {})
    @write.execute(key, value)
  end
end
